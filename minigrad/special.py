"""PyTorch's `torch.special`, over the methods of `Tensor`."""
from minigrad.functions import polygamma
from minigrad.methods import (
    digamma,
    erf,
    erfc,
    erfinv,
    exp2,
    expm1,
    lgamma,
    log1p,
    log_softmax,
    logit,
    logsumexp,
    mvlgamma,
    round,
    sigmoid,
    sinc,
    softmax,
    xlogy,
)

__all__ = ["digamma", "erf", "erfc", "erfinv", "exp2", "expit", "expm1", "gammaln", "log1p", "log_softmax", "logit",
           "logsumexp", "multigammaln", "polygamma", "psi", "round", "sinc", "softmax", "xlogy"]

expit, gammaln, multigammaln, psi = sigmoid, lgamma, mvlgamma, digamma
