"""The meaning of each tensor operation. Read op.py, then elementwise.py; `build` makes graphs of them."""
from minigrad.ops.attention import ATTENTION
from minigrad.ops.attention_gradient import ATTENTION_GRADIENT, ATTENTION_SUMS
from minigrad.ops.cross_entropy import CROSS_ENTROPIES
from minigrad.ops.decompositions import DECOMPOSITIONS
from minigrad.ops.divisors import GCD
from minigrad.ops.eigen import EIGEN
from minigrad.ops.elementwise import ELEMENTWISE
from minigrad.ops.factors import FACTORS
from minigrad.ops.functions import FUNCTIONS
from minigrad.ops.gamma import GAMMAS
from minigrad.ops.indexed import INDEXED
from minigrad.ops.inverse import INVERSES
from minigrad.ops.movement import MOVEMENT
from minigrad.ops.node import Node, apply, toposort
from minigrad.ops.op import Op
from minigrad.ops.ordering import ORDERINGS
from minigrad.ops.powers import POWER
from minigrad.ops.products import PRODUCTS
from minigrad.ops.reduce import REDUCE
from minigrad.ops.storage import STORAGE

OPS: dict[str, Op] = {op.name: op for op in (*STORAGE, *ELEMENTWISE, *REDUCE, *MOVEMENT, *INDEXED, ATTENTION,
                                             ATTENTION_SUMS, ATTENTION_GRADIENT, *FUNCTIONS, *CROSS_ENTROPIES,
                                             *INVERSES, *GAMMAS, GCD, POWER, EIGEN, *DECOMPOSITIONS, *FACTORS,
                                             *ORDERINGS, *PRODUCTS)}

__all__ = ["OPS", "Node", "Op", "apply", "toposort"]
