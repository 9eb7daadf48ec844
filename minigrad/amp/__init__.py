"""Mixed precision under PyTorch's names: `autocast` computes products in a half type, `GradScaler` keeps the gradients
of float16 in its range."""
from minigrad.amp.autocast import autocast as autocast
from minigrad.amp.autocast import custom_bwd as custom_bwd
from minigrad.amp.autocast import custom_fwd as custom_fwd
from minigrad.amp.autocast import get_autocast_dtype as get_autocast_dtype
from minigrad.amp.autocast import is_autocast_available as is_autocast_available
from minigrad.amp.autocast import is_autocast_enabled as is_autocast_enabled
from minigrad.amp.scaler import GradScaler as GradScaler
