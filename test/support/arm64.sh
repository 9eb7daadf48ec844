#!/usr/bin/env bash
# Runs tests, or anything else of Python, as on a processor of ARM: with Debian's Python for arm64 and its wheels, under
# QEMU, in a folder and as any user. It needs apt (for packages of Debian 13, whose QEMU knows Neoverse V1) and pip.
#
#     test/support/arm64.sh FOLDER                   makes FOLDER where it is not there, and runs the core tests
#     test/support/arm64.sh FOLDER -m pytest TEST    runs what is told instead
#     QEMU_CPU=neoverse-n1 test/support/arm64.sh FOLDER -m minigrad devices
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mkdir -p "$1" && cd "$1" && pwd)
shift
export QEMU_CPU="${QEMU_CPU:-neoverse-v1}"
core=(test/test_tensor.py test/test_autodiff.py test/test_platforms.py test/runtime/test_pool.py
    test/runtime/test_cpu_device.py test/codegen/render test/codegen/microkernels test/codegen/policy/test_narrow.py
    test/codegen/policy/test_bfloat16.py test/state/test_block_formats.py "test/examples/test_llama.py -k stories")

apt_for() { # architecture, then what apt-get is to do with packages of Debian 13 for it
    mkdir -p "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial"
    : >"$folder/apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" \
        >"$folder/apt/sources.list"
    apt-get -qq -o APT::Architecture="$1" -o APT::Architectures="$1" -o APT::Install-Recommends=false \
        -o Dir::Etc::sourcelist="$folder/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::status="$folder/apt/status" -o Dir::State::lists="$folder/apt/lists" \
        -o Dir::Cache="$folder/apt/cache" -o APT::Sandbox::User="$(id -un)" "${@:2}"
}

make_root() {
    apt_for arm64 update
    apt_for arm64 install -y --download-only python3 libstdc++6
    for package in "$folder"/apt/cache/archives/*.deb; do
        dpkg -x "$package" "$folder/root"
    done
    ln -sfn usr/lib "$folder/root/lib"
    apt_for amd64 update
    (cd "$folder/apt" && apt_for amd64 download qemu-user && dpkg -x qemu-user_*.deb "$folder/qemu")
    python3 -m pip --disable-pip-version-check install --quiet --target "$folder/packages" --only-binary :all: \
        --python-version 3.13 --implementation cp --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 \
        numpy llvmlite pyopencl safetensors tqdm pytest pytest-xdist array-api-strict gguf huggingface_hub jinja2 \
        ml_dtypes mpmath pillow sentencepiece tokenizers
    # Processes that this Python starts are programs of the machine that QEMU runs on, and this is one.
    printf '#!/bin/sh\nexec "%s/qemu/usr/bin/qemu-aarch64" -L "%s/root" -0 "$0" "%s/root/usr/bin/python3" "$@"\n' \
        "$folder" "$folder" "$folder" >"$folder/python3"
    chmod +x "$folder/python3"
}

[ -x "$folder/python3" ] || make_root
export PYTHONPATH="$repository:$folder/packages" MINIGRAD_CACHE="$folder/cache"
cd "$repository"
if [ $# -gt 0 ]; then
    exec "$folder/python3" "$@"
fi
for tests in "${core[@]}"; do
    # shellcheck disable=SC2086
    "$folder/python3" -m pytest -q -p no:cacheprovider $tests
done
