"""All mixins as one class, which Tensor is made of."""
from __future__ import annotations

from minigrad.mixins.activations import ActivationMixin
from minigrad.mixins.aliases import AliasMixin
from minigrad.mixins.attention import AttentionMixin
from minigrad.mixins.counting import CountingMixin
from minigrad.mixins.creation import CreationMixin
from minigrad.mixins.decompositions import DecompositionMixin
from minigrad.mixins.distances import DistanceMixin
from minigrad.mixins.elementwise import ElementwiseMixin
from minigrad.mixins.factors import FactorMixin
from minigrad.mixins.functions import FunctionMixin
from minigrad.mixins.gathering import GatheringMixin
from minigrad.mixins.hooks import HookMixin
from minigrad.mixins.indexing import IndexingMixin
from minigrad.mixins.inplace import InPlaceMixin
from minigrad.mixins.label_losses import LabelLossMixin
from minigrad.mixins.linalg import LinalgMixin
from minigrad.mixins.losses import LossMixin
from minigrad.mixins.memory import MemoryMixin
from minigrad.mixins.movement import MovementMixin
from minigrad.mixins.nn_functional import NNMixin
from minigrad.mixins.norms import NormMixin
from minigrad.mixins.numbers import NumberMixin
from minigrad.mixins.ordering import OrderingMixin
from minigrad.mixins.parts import PartsMixin
from minigrad.mixins.patterns import PatternMixin
from minigrad.mixins.places import PlacesMixin
from minigrad.mixins.pooling import PoolingMixin
from minigrad.mixins.protocols import ProtocolMixin
from minigrad.mixins.reduce import ReduceMixin
from minigrad.mixins.resampling import ResamplingMixin
from minigrad.mixins.sampling import SamplingMixin
from minigrad.mixins.scan import ScanMixin
from minigrad.mixins.special import SpecialMixin
from minigrad.mixins.spectra import SpectrumMixin
from minigrad.mixins.statistics import StatisticsMixin


class AllMixins(ActivationMixin, AliasMixin, AttentionMixin, CountingMixin, CreationMixin, DecompositionMixin,
                DistanceMixin, ElementwiseMixin, FactorMixin, FunctionMixin, GatheringMixin, HookMixin, IndexingMixin,
                InPlaceMixin, LabelLossMixin, LinalgMixin, LossMixin, MemoryMixin, MovementMixin, NNMixin, NormMixin,
                NumberMixin, OrderingMixin, PartsMixin, PatternMixin, PlacesMixin, PoolingMixin, ProtocolMixin,
                ReduceMixin, ResamplingMixin, SamplingMixin, ScanMixin, SpecialMixin, SpectrumMixin, StatisticsMixin):
    """Their order says nothing: no name is defined by two of them."""

    __slots__ = ()
