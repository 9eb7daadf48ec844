"""Samplers of diffusion models: DDIM, Euler, Euler with noise, and LCM, as tables of factors.

Whatever a sampler is derived from, one step of it is a sum of the latents, of what the model said and of fresh noise,
with factors that are known before anything is drawn:

    output = model(latents * scale, time);  latents = keep * latents + take * output + spread * noise

so that one captured step serves all of them. Betas, spacings and predictions are those of diffusers' configurations.

Sources: Song et al. 2020, https://arxiv.org/abs/2010.02502 (DDIM); Karras et al. 2022, https://arxiv.org/abs/2206.00364
(Euler); Luo et al. 2023, https://arxiv.org/abs/2310.04378 (LCM); Lin et al. 2023, https://arxiv.org/abs/2305.08891
(spacings, zero signal at the start)
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minigrad.errors import ConfigError, FormatError
from minigrad.state.fields import Fields, brief

SAMPLERS = ("ddim", "euler", "euler-ancestral", "lcm")
CLASSES = {"DDIMScheduler": "ddim", "EulerDiscreteScheduler": "euler",
           "EulerAncestralDiscreteScheduler": "euler-ancestral", "LCMScheduler": "lcm"}
"""Names in diffusers' configurations; for any other, DDIM is taken."""
SPACINGS = ("leading", "trailing", "linspace")


@dataclass(frozen=True)
class Config:
    """Of how the model was trained: its betas, what it predicts, which times are taken, and where they end. `original`
    are the steps that LCM's are taken from."""

    sampler: str = "ddim"
    betas: tuple[float, float] = (0.00085, 0.012)
    curve: str = "scaled_linear"
    times: int = 1000
    prediction: str = "epsilon"
    spacing: str = "leading"
    offset: int = 1
    ends_at_one: bool = False
    zero_snr: bool = False
    original: int = 50


@dataclass(frozen=True)
class Step:
    """Factors of a step, and those by which it guesses the clean latents: clean[0] * latents + clean[1] * output."""

    time: float
    scale: float
    keep: float
    take: float
    spread: float
    clean: tuple[float, float]


@dataclass(frozen=True)
class Schedule:
    """All steps; the factors of given latents and of noise that they start from, and that of noise alone."""

    steps: tuple[Step, ...]
    given: tuple[float, float]
    alone: float


ALLOWED: dict[str, tuple[object, ...]] = {
    "prediction_type": ("epsilon", "v_prediction", "sample"), "timestep_spacing": SPACINGS,
    "beta_schedule": ("scaled_linear", "linear"), "use_karras_sigmas": (False,), "use_exponential_sigmas": (False,),
    "use_beta_sigmas": (False,), "thresholding": (False,), "clip_sample": (False,), "final_sigmas_type": ("zero",),
    "interpolation_type": ("linear",), "timestep_type": ("discrete",), "trained_betas": ()}
"""Values that fields in configurations may have, where they are there."""


def read_config(fields: Fields) -> Config:
    """The configuration in a scheduler_config.json. Raises FormatError for what is not known here."""
    for key, known in ALLOWED.items():
        found = fields.content.get(key)
        if found is not None and found not in known:
            raise FormatError(f"{fields.source}: {key} is {brief(found)}; expected "
                              f"{' or '.join(map(str, known)) or 'none'}; use another sampler's configuration")
    sampler = CLASSES.get(fields.text("_class_name", ""), "ddim")
    usual = (0.00085, 0.012, "scaled_linear") if sampler == "lcm" else (0.0001, 0.02, "linear")
    found = Config(
        sampler, (fields.real("beta_start", 0, 1, usual[0]), fields.real("beta_end", 0, 1, usual[1])),
        fields.text("beta_schedule", usual[2]), fields.count("num_train_timesteps", 2, 1 << 20, 1000),
        fields.text("prediction_type", "epsilon"),
        fields.text("timestep_spacing", "linspace" if sampler.startswith("euler") else "leading"),
        fields.count("steps_offset", 0, default=0), fields.flag("set_alpha_to_one", True),
        fields.flag("rescale_betas_zero_snr", False), fields.count("original_inference_steps", default=50))
    if found.zero_snr and found.prediction == "epsilon":
        raise FormatError(f"{fields.source}: rescale_betas_zero_snr is on, and steps start at noise alone, of which "
                          "epsilon says nothing; expected v_prediction")
    return found


def schedule_of(config: Config, steps: int, strength: float = 1.0) -> Schedule:
    """The table of `steps` steps; with a strength below 1, of the last ones of them, for given latents. Raises
    ConfigError for numbers of steps that there are not."""
    most = config.original if config.sampler == "lcm" else config.times
    if not 1 <= steps <= most:
        raise ConfigError(f"--steps: expected 1 to {most} with {config.sampler}, got {steps}")
    if not 0 < strength <= 1:
        raise ConfigError(f"--strength: expected more than 0 and at most 1, got {strength:g}")
    skipped = steps - int(steps * strength)
    if skipped == steps:
        raise ConfigError(f"--strength: {strength:g} of {steps} steps is none; expected at least {1 / steps:.3g}")
    signal = signal_of(config)
    if config.sampler.startswith("euler"):
        return _euler(config, signal, steps, skipped)
    table, times = _lcm(config, signal, steps) if config.sampler == "lcm" else _ddim(config, signal, steps)
    first = signal[times[skipped]]
    return Schedule(tuple(table[skipped:]), (math.sqrt(first), math.sqrt(1 - first)), 1.0)


def signal_of(config: Config) -> np.ndarray:
    """The share of the image in the variance at each time of training."""
    low, high = config.betas
    betas = (np.linspace(low, high, config.times) if config.curve == "linear"
             else np.linspace(math.sqrt(low), math.sqrt(high), config.times) ** 2)
    signal = np.cumprod(1 - betas)
    if config.zero_snr:  # the last time is noise alone
        root = np.sqrt(signal)
        signal = ((root - root[-1]) * root[0] / (root[0] - root[-1])) ** 2
    return signal


def spaced(config: Config, steps: int) -> np.ndarray:
    """Times from the noisiest to the cleanest."""
    if config.spacing == "linspace":
        return np.linspace(0, config.times - 1, steps)[::-1]
    if config.spacing == "leading":
        return np.minimum(np.arange(steps)[::-1] * (config.times // steps) + config.offset, config.times - 1)
    return np.round(np.arange(config.times, 0, -config.times / steps))[:steps] - 1


def _split(config: Config, signal: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """(factors of latents and of the output in the clean latents, and in the noise), where a share `signal` of the
    latents' variance is the image."""
    a, b = math.sqrt(signal), math.sqrt(1 - signal)
    if config.prediction == "epsilon":
        return (1 / a, -b / a), (0.0, 1.0)
    if config.prediction == "v_prediction":
        return (a, -b), (b, a)
    return (0.0, 1.0), (1 / b, -a / b)


def _ddim(config: Config, signal: np.ndarray, steps: int) -> tuple[list[Step], list[int]]:
    """From a guess of the clean latents and of the noise, both mixed as an earlier time has them."""
    times = [int(time) for time in np.round(spaced(config, steps))]
    table = []
    for time in times:
        clean, noise = _split(config, signal[time])
        before = time - config.times // steps
        left = signal[before] if before >= 0 else 1.0 if config.ends_at_one else signal[0]
        a, b = math.sqrt(left), math.sqrt(1 - left)
        table.append(Step(time, 1.0, a * clean[0] + b * noise[0], a * clean[1] + b * noise[1], 0.0, clean))
    return table, times


def _lcm(config: Config, signal: np.ndarray, steps: int) -> tuple[list[Step], list[int]]:
    """A guess of the clean latents by the model, with fresh noise in all steps but the last."""
    trained = np.arange(1, config.original + 1)[::-1] * (config.times // config.original) - 1
    times = [int(trained[place]) for place in np.floor(np.linspace(0, len(trained), steps, endpoint=False)).astype(int)]
    table = []
    for number, time in enumerate(times):
        guess, _ = _split(config, signal[time])
        spread = (time * 10.0) ** 2 + 0.25
        same, changed = 0.25 / spread, time * 10.0 / math.sqrt(spread)  # at time 0 the latents are what they are
        clean = same + changed * guess[0], changed * guess[1]
        left = signal[times[number + 1]] if number + 1 < steps else 1.0
        a = math.sqrt(left)
        table.append(Step(time, 1.0, a * clean[0], a * clean[1], math.sqrt(1 - left), clean))
    return table, times


def _euler(config: Config, signal: np.ndarray, steps: int, skipped: int) -> Schedule:
    """Along the line from the latents to the guess of the clean ones, where latents are clean ones and `sigma` times
    the noise; the ancestral sampler goes further and adds fresh noise."""
    if config.zero_snr:
        signal = np.append(signal[:-1], 2.0 ** -24)
    times = spaced(config, steps)
    sigmas = np.append(np.interp(times, np.arange(config.times), np.sqrt((1 - signal) / signal)), 0.0)
    table = []
    for time, sigma, following in zip(times, sigmas[:-1], sigmas[1:], strict=True):
        scale = 1 / math.sqrt(sigma ** 2 + 1)
        by_output = {"epsilon": -sigma, "v_prediction": -sigma * scale, "sample": 1.0}[config.prediction]
        clean = {"epsilon": 1.0, "v_prediction": scale ** 2, "sample": 0.0}[config.prediction], by_output
        fresh = following * math.sqrt(1 - (following / sigma) ** 2) if config.sampler == "euler-ancestral" else 0.0
        part = 1 - math.sqrt(following ** 2 - fresh ** 2) / sigma  # of the way to the clean latents
        table.append(Step(float(time), scale, 1 - part + part * clean[0], part * clean[1], fresh, clean))
    most = float(sigmas.max())
    alone = math.sqrt(most ** 2 + 1) if config.spacing == "leading" else most
    return Schedule(tuple(table[skipped:]), (1.0, float(sigmas[skipped])), alone)
