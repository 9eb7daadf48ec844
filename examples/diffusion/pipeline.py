"""From words to a picture: the text's rows, steps of the sampler through the U-Net, and the decoder.

Each part is built when its turn comes and is gone before the next one, so that memory holds one of them at a time.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.diffusion.checkpoint import Checkpoint, fill, text_part
from examples.diffusion.clip import CLIPText
from examples.diffusion.schedulers import Schedule, schedule_of
from examples.diffusion.tiles import decode_tiled
from examples.diffusion.tokenizer import CLIPTokenizer
from examples.diffusion.unet import UNet2DConditionModel, guidance_waves
from examples.zoo.vae import AutoencoderKLDecoder, AutoencoderKLEncoder
from minigrad import Tensor, jit


@dataclass(frozen=True)
class Request:
    """A picture to draw, in pixels; `image` float32 [3, height, width] in -1..1 is where to begin, None: at noise."""

    prompt: str
    negative: str | None = None
    steps: int = 20
    guidance: float = 7.5
    seed: int = 0
    height: int = 512
    width: int = 512
    image: np.ndarray | None = None
    strength: float = 0.75


@dataclass(frozen=True)
class Words:
    """Rows of texts [N, 77, width], and XL's summaries [N, M]; N is 2 with guidance, without the prompt first."""

    rows: Tensor
    summaries: Tensor | None


Seen = Callable[[int, int, np.ndarray], None]
"""Called after each step with its number, how many there are, and the guess of the clean latents."""


class Pipeline:
    """A checkpoint's parts, with weights of the U-Net and of texts in a type. The autoencoder stays in float32, as that
    of XL leaves float16's range; `tile` is the side of the pieces of latents that it decodes (0: all at once)."""

    def __init__(self, checkpoint: Checkpoint, dtype: str = "float32", tile: int = 0):
        self.checkpoint, self.dtype, self.tile = checkpoint, dtype, tile

    def __call__(self, request: Request, seen: Seen | None = None) -> np.ndarray:
        """uint8 [height, width, 3]."""
        schedule = schedule_of(self.checkpoint.sampler, request.steps,
                               1.0 if request.image is None else request.strength)
        latents = self.begun(request, schedule)
        words = self.words(request)
        for number, found in enumerate(self.denoised(request, schedule, words, latents)):
            latents = found[0]
            if seen is not None:
                seen(number + 1, len(schedule.steps), found[1])
        image = self.decoded(latents)[0].transpose(1, 2, 0)
        return np.clip(np.rint((image + 1) * 127.5), 0, 255).astype(np.uint8)

    # Words

    def guided(self, request: Request) -> bool:
        """True where each step runs twice, without the prompt too; distilled models take the guidance as a number."""
        return request.guidance > 1 and not self.checkpoint.unet.guided

    def words(self, request: Request) -> Words:
        """Rows of the prompt, and, with guidance, of the negative prompt before it."""
        texts = [request.prompt]
        if self.guided(request):
            texts.insert(0, request.negative or "")
        found = [self._encoded(number, texts) for number in range(len(self.checkpoint.texts))]
        if not self.checkpoint.xl:
            return Words(Tensor(found[0][0]), None)
        rows, summaries = np.concatenate([before for _, before, _ in found], axis=-1), found[-1][2]
        if len(texts) == 2 and request.negative is None and self.checkpoint.blank:
            rows[0], summaries[0] = 0, 0
        return Words(Tensor(rows), Tensor(summaries))

    def _encoded(self, number: int, texts: list[str]) -> tuple[np.ndarray, ...]:
        checkpoint, part = self.checkpoint, text_part(number)
        config = checkpoint.texts[number]
        tokenize = CLIPTokenizer(checkpoint.tokenizers[number], config.positions, config.vocabulary)
        tokens = Tensor(np.array([tokenize(text) for text in texts], np.int32))
        model = fill(CLIPText(config), checkpoint.state(part), f"{checkpoint.path}: {part}", self.dtype)
        with Tensor.no_grad():
            found = [each.float() for each in model(tokens)]
            Tensor.realize(*found)
        return tuple([each.numpy() for each in found])

    # Steps

    def begun(self, request: Request, schedule: Schedule) -> np.ndarray:
        """Latents float32 [1, 4, height / 8, width / 8] that the first step takes: noise of the seed, over the latents
        of the image where there is one."""
        noise = self._noise(request, 0)
        if request.image is None:
            return noise * np.float32(schedule.alone)
        kept, added = schedule.given
        return (self.encoded(request.image[None]) * kept + noise * added).astype(np.float32)

    def _noise(self, request: Request, step: int) -> np.ndarray:
        scale = 2 ** (len(self.checkpoint.vae.channels) - 1)
        shape = 1, 4, request.height // scale, request.width // scale
        return np.random.default_rng([request.seed, step]).standard_normal(shape).astype(np.float32)

    def denoised(self, request: Request, schedule: Schedule, words: Words, latents: np.ndarray
                 ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(latents, the guess of the clean ones) after each step."""
        checkpoint, guided = self.checkpoint, self.guided(request)
        count, dtype = (2 if guided else 1), self.dtype
        net = fill(UNet2DConditionModel(checkpoint.unet), checkpoint.state("unet"), f"{checkpoint.path}: unet", dtype)
        rows = words.rows.cast(dtype).realize()
        summaries = None if words.summaries is None else words.summaries.cast(dtype).realize()
        height, width = request.height, request.width
        sizes = Tensor(np.array([[height, width, 0, 0, height, width]] * count, np.float32))
        given = (Tensor(guidance_waves(request.guidance, checkpoint.unet.guided)).cast(dtype).realize()
                 if checkpoint.unet.guided else None)

        @jit
        def step(x: Tensor, noise: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
            time, scale, keep, take, spread, clean_keep, clean_take, guidance = [factors[k] for k in range(8)]
            with Tensor.no_grad():
                inputs = (x * scale).expand(count, *x.shape[1:]).cast(dtype)
                output = net(inputs, time.expand(count), rows, summaries, sizes, given).float()
                if guided:
                    free, wanted = output.chunk(2, dim=0)
                    output = free + guidance * (wanted - free)
                return keep * x + take * output + spread * noise, clean_keep * x + clean_take * output

        x = Tensor(latents)
        for number, each in enumerate(schedule.steps):
            noise = self._noise(request, number + 1) if each.spread else np.zeros_like(latents)
            factors = each.time, each.scale, each.keep, each.take, each.spread, *each.clean, request.guidance
            x, clean = step(x, Tensor(noise), Tensor(np.array(factors, np.float32)))
            Tensor.realize(x, clean)
            yield x.numpy(), clean.numpy()

    # Pictures

    def encoded(self, images: np.ndarray) -> np.ndarray:
        """Latents of images float32 [N, 3, H, W] in -1..1: the means that the autoencoder finds, scaled."""
        found = self._autoencoder(AutoencoderKLEncoder, ("encoder.", "quant_conv."))
        with Tensor.no_grad():
            return found(Tensor(images)).numpy() * np.float32(self.checkpoint.vae.scaling)

    def decoded(self, latents: np.ndarray) -> np.ndarray:
        """Images float32 [N, 3, H, W] in about -1..1."""
        decoder = jit(self._autoencoder(AutoencoderKLDecoder, ("decoder.", "post_quant_conv.")))

        def decode(part: np.ndarray) -> np.ndarray:
            with Tensor.no_grad():
                return decoder(Tensor(part)).numpy()

        return decode_tiled(decode, latents / np.float32(self.checkpoint.vae.scaling), self.tile)

    def _autoencoder(self, kind: Any, parts: tuple[str, ...]) -> Any:
        checkpoint, vae = self.checkpoint, self.checkpoint.vae
        state = {name: tensor for name, tensor in checkpoint.state("vae").items() if name.startswith(parts)}
        return fill(kind(vae.channels, vae.layers), state, f"{checkpoint.path}: vae")
