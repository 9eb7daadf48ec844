"""Models from the Hugging Face Hub: hf:owner/name or hf:owner/name:file, downloaded once, with progress and resume."""
from __future__ import annotations

import fnmatch
import re
from pathlib import Path

from minigrad.errors import FormatError
from minigrad.state.fields import brief, one_line

PREFIX = "hf:"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
FOLDER_FILES = ("*.json", "*.safetensors", "tokenizer.model", "chat_template.jinja")
"""The files of a Hugging Face folder that are of use."""
USUAL = ("*q4_k_m.gguf", "*q4_0.gguf", "*q8_0.gguf", "*.gguf")
"""Which of several GGUF files is taken, where none is named: the first of these that there is one of."""


def fetch_model(name: str) -> Path:
    """The file or folder of a model `hf:owner/name[:file]`, in the Hub's own cache. Raises FormatError."""
    repository, _, file = name.removeprefix(PREFIX).partition(":")
    if not _NAME.fullmatch(repository):
        raise FormatError(f"{name}: expected hf:owner/name or hf:owner/name:file; check --model")
    try:
        from huggingface_hub import HfApi, hf_hub_download, snapshot_download
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise FormatError(f'{name}: downloads need huggingface_hub: pip install "minigrad[chat]"') from None
    try:
        if file:
            return Path(hf_hub_download(repository, file))
        try:
            files = HfApi().list_repo_files(repository)
        except (GatedRepoError, HfHubHTTPError):
            raise
        except OSError:  # offline: whatever was downloaded before
            return _chosen(Path(snapshot_download(repository, local_files_only=True)), name)
        if "config.json" in files and any([each.endswith(".safetensors") for each in files]):
            return Path(snapshot_download(repository, allow_patterns=list(FOLDER_FILES)))
        return Path(hf_hub_download(repository, best_file(files, name)))
    except GatedRepoError:
        raise FormatError(f"{name}: its owner asks for an agreement; accept it on the Hub, run `hf auth login` and "
                          "try again") from None
    except LocalEntryNotFoundError:
        raise FormatError(f"{name}: it is not downloaded and the Hub cannot be reached; check the network") from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        reason = one_line(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
        raise FormatError(f"{name}: cannot be downloaded: {brief(reason)[1:-1]}; check the name and the network"
                          ) from None


def best_file(files: list[str], name: str) -> str:
    """The GGUF file to take. Raises FormatError where there is none or it is one of several parts."""
    for wanted in USUAL:
        found = sorted([file for file in files if fnmatch.fnmatch(file.lower(), wanted)])
        if found:
            if re.search(r"-of-\d+\.gguf$", found[0]):
                raise FormatError(f"{name}: {found[0]} is a part of a model; expected one file; name another one as "
                                  "hf:owner/name:file")
            return found[0]
    raise FormatError(f"{name}: expected a .gguf file, or config.json and .safetensors, among its {len(files)} files; "
                      "use another model")


def _chosen(folder: Path, name: str) -> Path:
    if (folder / "config.json").is_file() and list(folder.glob("*.safetensors")):
        return folder
    return folder / best_file([path.name for path in folder.glob("*.gguf")], name)
