"""Answers of a given form: which tokens may come next, by an automaton over bytes and a trie of the vocabulary."""
from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from examples.llama.grammar import MAX_STATES, Automaton, Expression
from examples.llama.tokenizer import Tokenizer
from minigrad.errors import MinigradError

KEPT_STATES = 64
"""States of the automaton whose tokens are remembered."""

@dataclass(frozen=True)
class Level:
    """The nodes of a trie at one depth: each one's parent in the level above, its byte, and tokens that end there."""

    parents: np.ndarray
    bytes: np.ndarray
    tokens: np.ndarray
    nodes: np.ndarray  # of `tokens`


class Trie:
    """The bytes of all tokens of a vocabulary, level by level; `alphabet` are those that are a token alone."""

    def __init__(self, tokenizer: Tokenizer, size: int):
        self.texts = [tokenizer.token_bytes(token) for token in range(tokenizer.size)]
        self.size = size
        self.levels = self._levels()
        self.alphabet = sum([1 << text[0] for text in set(self.texts) if len(text) == 1])

    def _levels(self) -> list[Level]:
        levels, above = [], {b"": 0}
        left = [(text, token) for token, text in enumerate(self.texts) if text]
        depth = 0
        while left:
            depth += 1
            prefixes = sorted({text[:depth] for text, _ in left})
            nodes = {prefix: node for node, prefix in enumerate(prefixes)}
            ends = [(token, nodes[text]) for text, token in left if len(text) == depth]
            levels.append(Level(np.array([above[prefix[:-1]] for prefix in prefixes], np.int32),
                                np.array([prefix[-1] for prefix in prefixes], np.uint8),
                                np.array([token for token, _ in ends], np.int32),
                                np.array([node for _, node in ends], np.int32)))
            above, left = nodes, [(text, token) for text, token in left if len(text) > depth]
        return levels

    def walk(self, automaton: Automaton, start: int) -> np.ndarray:
        """The state after each token, int32 [size]; -1 for those that cannot come."""
        after = np.full(self.size, -1, np.int32)
        states = np.array([start], np.int32)
        for level in self.levels:
            before = states[level.parents]
            states = np.full(len(before), -1, np.int32)
            live = np.flatnonzero(before >= 0)
            if not len(live):
                break
            needed, which = np.unique(before[live], return_inverse=True)
            table = np.stack([automaton.row(int(state)) for state in needed])
            states[live] = table[which, level.bytes[live]]
            after[level.tokens] = states[level.nodes]
        return after


class JsonForm:
    """The form of a grammar with what is remembered about it: makes a `Constraint` for each answer.

    Only bytes that are tokens by themselves are used, so that whatever has begun can be completed. Raises MinigradError
    where there is no text of them. `size` is the number of logits. Several forms may share the `trie` of a tokenizer.
    """

    def __init__(self, grammar: Expression, tokenizer: Tokenizer, size: int, trie: Trie | None = None):
        self.trie = Trie(tokenizer, size) if trie is None else trie
        self.automaton = Automaton(grammar, self.trie.alphabet)
        if self.automaton.shortest(0) == math.inf:
            raise MinigradError("the tokenizer has no tokens for some characters of every JSON that meets the schema; "
                                "use another model with --json-schema")
        self._known: OrderedDict[int, np.ndarray] = OrderedDict()

    def begin(self, count: int) -> Constraint:
        """Of an answer of at most `count` tokens. Raises MinigradError where none has so few."""
        if len(self.automaton.states) > MAX_STATES:
            self.automaton.begin()
            self._known.clear()
        least = int(self.automaton.shortest(0))
        if least > count:
            raise MinigradError(f"the shortest answer that meets the schema may take {least} tokens, and only {count} "
                                "can be given; ask for more with --count or --context")
        return Constraint(self)

    def after(self, state: int) -> np.ndarray:
        """The state after each token; do not change it."""
        found = self._known.get(state)
        if found is None:
            found = self._known[state] = self.trie.walk(self.automaton, state)
            if len(self._known) > KEPT_STATES:
                self._known.popitem(last=False)
        self._known.move_to_end(state)
        return found


class Constraint:
    """The state of one answer."""

    def __init__(self, form: JsonForm):
        self.form, self.state = form, 0

    def choose(self, pick: Callable[[np.ndarray], int], ends: frozenset[int], left: int) -> int | None:
        """The token that `pick` takes of those that may come, so that the answer can be completed with `left` tokens,
        this one too; one of `ends` or None where it is complete.
        """
        automaton, after = self.form.automaton, self.form.after(self.state)
        allowed = after >= 0
        if automaton.shortest(self.state) == 0:
            if not ends or not allowed.any():
                return None
            allowed[list(ends)] = True
        token = pick(allowed)
        if token in ends:
            return token
        if automaton.shortest(int(after[token])) > left - 1:
            # Of a completion each byte is a token at worst, so that some token always leaves few enough.
            possible, which = np.unique(after, return_inverse=True)
            short = np.array([state >= 0 and automaton.shortest(int(state)) < left for state in possible])
            allowed &= short[which] | (after < 0)  # the ends have no state
            token = pick(allowed)
        if token not in ends:
            self.state = int(after[token])
        return token
