"""Mixed precision under PyTorch's names: `autocast` computes products in a half type, `GradScaler` keeps the gradients
of float16 in its range."""
from minigrad.amp.casting import autocast as autocast
from minigrad.amp.casting import custom_bwd as custom_bwd
from minigrad.amp.casting import custom_fwd as custom_fwd
from minigrad.amp.casting import get_autocast_dtype as get_autocast_dtype
from minigrad.amp.casting import is_autocast_available as is_autocast_available
from minigrad.amp.casting import is_autocast_enabled as is_autocast_enabled
from minigrad.amp.scaler import GradScaler as GradScaler
