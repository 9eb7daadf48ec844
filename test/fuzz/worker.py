"""The process that runs networks: a request a line on stdin, an answer a line on stdout.

A request is `{"seed": n, "devices": [...], "set": {...}}` or `{"network": "..."}`. The answer has the network, which is
told first, so that the network is known if the process dies in it.
"""
from __future__ import annotations

import faulthandler
import gc
import json
import os
import resource
import sys
import warnings
from dataclasses import replace
from typing import Any

MEMORY = 12 << 30
"""Bytes of address space: what asks for more gets an error, and the machine goes on."""


def main() -> None:
    """Answers until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    from fuzz.check import blame, check, set_up
    from fuzz.draw import draw
    from fuzz.network import Network, from_json
    from fuzz.script import script

    def say(**answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    def network_of(request: dict[str, Any]) -> Network:
        if "network" in request:
            return from_json(request["network"])
        return replace(draw(request["seed"], request["devices"]), **request["set"])

    set_up()
    gc.freeze()  # else each collection walks over all that was imported
    say(ready=processor_time())
    for line in sys.stdin:
        request, start = json.loads(line), processor_time()
        network = network_of(request)
        say(network=network.to_json())
        if request.get("want") == "script":
            say(script=script(network), blame=blame(network), text=network.text(), seconds=processor_time() - start)
            continue
        outcome = check(network)
        say(kind=outcome.kind, key=outcome.key, text=outcome.text, seconds=processor_time() - start)


def processor_time() -> float:
    """Seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    main()
