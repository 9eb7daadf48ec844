"""Random changes of batches of images, as functions over Tensors that join the kernels of a captured step."""
from minigrad.data.augment.colour import color_jitter, normalize
from minigrad.data.augment.draws import draws
from minigrad.data.augment.geometry import (
    center_crop,
    cutout,
    random_crop,
    random_erase,
    random_flip,
    random_resized_crop,
)
from minigrad.data.augment.mixing import cutmix, mixup, mixup_or_cutmix, one_hot
from minigrad.data.augment.rand import rand_augment

__all__ = ["center_crop", "color_jitter", "cutmix", "cutout", "draws", "mixup", "mixup_or_cutmix", "normalize",
           "one_hot", "rand_augment", "random_crop", "random_erase", "random_flip", "random_resized_crop"]
