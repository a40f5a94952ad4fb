# SPDX-License-Identifier: Apache-2.0
"""Prompts that show what a sparse plan loses, for any model. Each probe has the token that should come next and the kind of thing it asks for.

A task prompt has pass keys, word lists and paragraphs in its first 45 %. In the rest they are asked for or repeated, in random order and spread
evenly, with paragraphs that occur only once before, between and after them. A text prompt is prose or code alone.

A look-up prompt is prose with facts between its sentences. Each is told once in the first 40 % and asked for once in the second half, and the
answer is one word: a single row needs the fact. In a task, what is asked for comes in runs of rows, so a plan that samples rows sees some of them.

Every piece is tokenised by itself, so that a probe starts where its kind begins, whatever the tokenizer would join.
"""

import random
import re

from text_pool import code_files, prose_paragraphs, words

TEXT, PARAGRAPH, KEY_FIRST, KEY_LATER, WORD_LIST = KINDS = ("text", "paragraph copy", "key, first digit", "key, later digits", "word list")
CODE_WORD, HOME_TOWN, OPPOSITE = LOOKUP_KINDS = ("look-up, code word", "look-up, home town", "look-up, opposite")

PLANTED_SHARE = 0.45
# No plan changes the last rows, at most 127 of them: they are dense (kernels/index/tiling.h).
UNJUDGED_ROWS = 128
# A copy is judged from this token on; before it, the model cannot know which paragraph is copied.
COPY_CONTEXT_TOKENS = 8
TEXT_STEP = 8
LIST_WORDS = 24
KEY_DIGITS = 5
# A look-up is at least a tenth of the prompt away from its fact: other pages than those near by, which every plan keeps.
TOLD_SHARE, ASKED_SHARE = 0.4, 0.5
# Facts of each kind that are asked for: 12 at 4,096 tokens, and at any length no more than small models tell apart. A third as many are told in vain.
MOST_LOOKUPS = 24
# Further facts of each kind, told twice: they show a small model that facts come again.
LOOKUP_EXAMPLES = 2
NAMES = ["Adam", "Alice", "Bruno", "Clara", "Daniel", "Edith", "Felix", "Grace", "Henry", "Irene", "Jacob", "Karen", "Laura", "Martin", "Nora",
         "Oscar", "Paula", "Quentin", "Rachel", "Simon", "Teresa", "Ursula", "Victor", "Walter", "Yvonne", "Zoe"]
CITIES = ["Amsterdam", "Athens", "Atlanta", "Baghdad", "Barcelona", "Beijing", "Berlin", "Boston", "Brussels", "Budapest", "Cairo", "Chicago",
          "Copenhagen", "Dallas", "Delhi", "Denver", "Detroit", "Dublin", "Edinburgh", "Geneva", "Glasgow", "Hamburg", "Houston", "Istanbul",
          "Jerusalem", "Lisbon", "Liverpool", "London", "Madrid", "Manchester", "Melbourne", "Miami", "Milan", "Montreal", "Moscow", "Mumbai",
          "Munich", "Naples", "Oslo", "Paris", "Philadelphia", "Phoenix", "Prague", "Rome", "Seattle", "Shanghai", "Singapore", "Stockholm",
          "Sydney", "Tokyo", "Toronto", "Venice", "Vienna", "Warsaw", "Zurich"]
NOUNS = ["anchor", "apple", "arrow", "autumn", "banana", "basket", "beach", "bottle", "bread", "bridge", "butter", "camera", "candle", "carpet",
         "castle", "cherry", "circle", "cloud", "coffee", "copper", "cotton", "desert", "diamond", "dinner", "doctor", "dragon", "eagle", "earth",
         "engine", "farmer", "feather", "finger", "flower", "forest", "garden", "glass", "gold", "guitar", "hammer", "harbor", "honey", "horse",
         "hotel", "island", "jacket", "jungle", "kitchen", "ladder", "lemon", "lion", "market", "meadow", "mirror", "monkey", "moon", "mountain",
         "music", "needle", "ocean", "onion", "orange", "palace", "paper", "pencil", "pepper", "piano", "pillow", "planet", "pocket", "potato",
         "prince", "queen", "rabbit", "rain", "ribbon", "river", "rocket", "rose", "sailor", "salt", "school", "shadow", "ship", "silver",
         "soldier", "spider", "spring", "stone", "storm", "sugar", "summer", "table", "teacher", "temple", "thunder", "tiger", "tomato", "tower",
         "train", "tree", "tunnel", "turtle", "valley", "village", "violin", "wagon", "water", "wheel", "whale", "window", "winter", "wolf", "wood"]


class Piece:
    """Tokens that stay together. probes: (index of the token that should be predicted, kind)."""

    def __init__(self, *parts):
        self.token_ids, self.probes = [], []
        for token_ids, probes in parts:
            self._append(token_ids, probes)

    def append(self, piece):
        self._append(piece.token_ids, piece.probes)

    def _append(self, token_ids, probes):
        self.probes += [(len(self.token_ids) + i, kind) for i, kind in probes]
        self.token_ids += token_ids


class PromptMaker:
    """tokenizer: of the package tokenizers."""

    def __init__(self, tokenizer, num_tokens, seed):
        self.tokenizer, self.num_tokens, self.seed = tokenizer, num_tokens, seed
        self.first_ids = tokenizer.encode("").ids  # the beginning-of-text token, if the model has one
        self.paragraphs, self.code = prose_paragraphs(), code_files()
        self.words = words(self.paragraphs)

    def task(self, number):
        rng = random.Random(f"task {self.seed} {number}")
        paragraphs = iter(rng.sample(self.paragraphs, len(self.paragraphs)))
        # At 4,096 tokens 12 keys, 3 lists and 7 paragraphs: about half of the first part is what will be asked for.
        num_keys = max(2, self.num_tokens // 320)
        num_lists = max(1, self.num_tokens // 1300)
        num_copies = max(2, self.num_tokens // 560)
        names = rng.sample([f"{first} {last}" for first in NAMES for last in NAMES if first != last], num_keys + num_lists)
        things = ([self._key(rng, name) for name in names[:num_keys]]
                  + [self._list(rng, name) for name in names[num_keys:]]
                  + [self._copy(next(paragraphs)) for _ in range(num_copies)])
        planted, asked = ([pair[side] for pair in things] for side in (0, 1))
        rng.shuffle(planted)
        rng.shuffle(asked)
        prompt = self._begin()
        self._spread(prompt, planted, int(self.num_tokens * PLANTED_SHARE), paragraphs)
        self._reach(prompt, int(self.num_tokens * PLANTED_SHARE), paragraphs)
        self._spread(prompt, asked, self.num_tokens - UNJUDGED_ROWS, paragraphs)
        self._reach(prompt, self.num_tokens, paragraphs)
        return self._prompt(f"task-{number}", prompt)

    def text(self, number):
        """Returns prose and code by turns, judged from a quarter of the prompt on."""
        rng = random.Random(f"text {self.seed} {number}")
        texts = self.code if number % 2 else self.paragraphs
        start = rng.randrange(len(texts))
        prompt = self._begin()
        self._reach(prompt, self.num_tokens, iter(texts[start:] + texts[:start]))
        prompt.probes = [(i, TEXT) for i in range(self.num_tokens // 4, self.num_tokens, TEXT_STEP)]
        return self._prompt(f"text-{number}", prompt)

    def lookup(self, number):
        """Returns prose with facts that are looked up."""
        rng = random.Random(f"lookup {self.seed} {number}")
        num_asked = max(2, min(MOST_LOOKUPS, self.num_tokens // 320))
        num_told = num_asked + num_asked // 3
        facts = self._facts(rng, num_told + LOOKUP_EXAMPLES)
        prompt, sentences = self._begin(), self._sentences(rng)
        for of_kind in facts.values():
            for fact in of_kind[:LOOKUP_EXAMPLES]:
                prompt.append(self._fact(*fact, None))
        told = [self._fact(*fact, None) for of_kind in facts.values() for fact in of_kind]
        asked = [self._fact(*fact, kind) for kind, of_kind in facts.items() for fact in of_kind[LOOKUP_EXAMPLES:LOOKUP_EXAMPLES + num_asked]]
        rng.shuffle(told)
        self._spread_facts(prompt, told, int(self.num_tokens * TOLD_SHARE), sentences)
        rng.shuffle(asked)
        self._reach_sentences(prompt, int(self.num_tokens * ASKED_SHARE), sentences)
        self._spread_facts(prompt, asked, self.num_tokens - UNJUDGED_ROWS, sentences)
        self._reach_sentences(prompt, self.num_tokens, sentences)
        return self._prompt(f"lookup-{number}", prompt)

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _begin(self):
        return Piece((self.first_ids, ()))

    def _text(self, text):
        return Piece((self.encode(text + "\n\n"), ()))

    def _key(self, rng, name):
        key = "".join(str(rng.randrange(10)) for _ in range(KEY_DIGITS))
        before, digits = self.encode(f"The pass key for {name} is"), self.encode(f" {key}")
        # Some tokenizers put the space into a token of its own, or several digits into one.
        first = next(i for i, token in enumerate(digits) if any(c.isdigit() for c in self.tokenizer.decode([token])))
        kinds = [(i, KEY_FIRST if i == first else KEY_LATER) for i in range(first, len(digits))]
        return (Piece((before, ()), (digits, ()), (self.encode(". Remember it.\n\n"), ())),
                Piece((before, ()), (digits, kinds), (self.encode(".\n\n"), ())))

    def _list(self, rng, name):
        before = self.encode(f"The words of {name} are:")
        listed = self.encode(" " + " ".join(rng.sample(self.words, LIST_WORDS)))
        end = self.encode(".\n\n")
        return (Piece((before, ()), (listed, ()), (end, ())),
                Piece((before, ()), (listed, [(i, WORD_LIST) for i in range(len(listed))]), (end, ())))

    def _copy(self, text):
        token_ids = self.encode(text + "\n\n")
        return Piece((token_ids, ())), Piece((token_ids, [(i, PARAGRAPH) for i in range(COPY_CONTEXT_TOKENS, len(token_ids) - 1)]))

    def _facts(self, rng, count):
        """Returns (question, answer) pairs by kind. No two have the same subject or answer."""
        names = iter(rng.sample([f"{first} {last}" for first in NAMES for last in NAMES if first != last], 2 * count))
        nouns, cities = (self._beginning_differently(rng.sample(known, len(known))) for known in (NOUNS, CITIES))
        if min(len(nouns) // 3, len(cities)) < count:
            raise ValueError(f"the tokenizer tells {len(nouns)} nouns and {len(cities)} cities apart by their first token; "
                             f"needed are {3 * count} and {count}")
        pairs = zip(nouns[count:2 * count], nouns[2 * count:3 * count], strict=True)
        return {CODE_WORD: [(f" The code word for {next(names)} is", noun) for noun in nouns[:count]],
                HOME_TOWN: [(f" The home town of {next(names)} is", city) for city in cities[:count]],
                OPPOSITE: [(f" The opposite of {other} is", noun) for noun, other in pairs]}

    def _beginning_differently(self, known):
        """Returns the words without those that begin with the same token as one before them."""
        by_token = {}
        for word in known:
            token_ids = self.encode(f" {word}")
            by_token.setdefault(token_ids[self._first_letter(token_ids)], word)
        return list(by_token.values())

    def _first_letter(self, token_ids):
        """Some tokenizers put the space before a word into a token of its own."""
        return next(i for i, token in enumerate(token_ids) if any(c.isalpha() for c in self.tokenizer.decode([token])))

    def _fact(self, question, answer, kind):
        """A sentence that is judged at its answer if it has a kind."""
        token_ids = self.encode(f" {answer}")
        return Piece((self.encode(question), ()), (token_ids, [(self._first_letter(token_ids), kind)] if kind else ()), (self.encode("."), ()))

    def _sentences(self, rng):
        """Yields the prose of distinct paragraphs sentence by sentence, each with the space before it."""
        for paragraph in rng.sample(self.paragraphs, len(self.paragraphs)):
            for sentence in re.split(r"(?<=[.!?]) +(?=[A-Z])", paragraph):
                yield Piece((self.encode(f" {sentence}"), ()))

    def _spread_facts(self, prompt, facts, end, sentences):
        """Appends facts so that they end by `end`, evenly, with whole sentences between them. After a sentence longer than a gap the next gaps are
        shorter."""
        space, filled = end - len(prompt.token_ids) - sum(len(fact.token_ids) for fact in facts), 0
        for i, fact in enumerate(facts):
            while filled < space * i // len(facts) and filled + len((sentence := next(sentences)).token_ids) <= space:
                prompt.append(sentence)
                filled += len(sentence.token_ids)
            prompt.append(fact)

    def _reach_sentences(self, prompt, end, sentences):
        while len(prompt.token_ids) < end:
            prompt.append(next(sentences))

    def _spread(self, prompt, pieces, end, paragraphs):
        """Appends pieces so that they end by `end`, with paragraphs before and between them."""
        left = sum(len(piece.token_ids) for piece in pieces)
        for i, piece in enumerate(pieces):
            gap = (end - len(prompt.token_ids) - left) // (len(pieces) - i)
            self._fill(prompt, len(prompt.token_ids) + gap, paragraphs)
            prompt.append(piece)
            left -= len(piece.token_ids)

    def _fill(self, prompt, end, paragraphs):
        """Appends as many whole paragraphs as end by `end`."""
        while len((paragraph := self._text(next(paragraphs))).token_ids) <= end - len(prompt.token_ids):
            prompt.append(paragraph)

    def _reach(self, prompt, end, texts):
        """Appends whole texts up to `end` or beyond."""
        while len(prompt.token_ids) < end:
            prompt.append(self._text(next(texts)))

    def _prompt(self, name, piece):
        token_ids = piece.token_ids[:self.num_tokens]
        judged = [(i, kind) for i, kind in piece.probes if i < self.num_tokens - UNJUDGED_ROWS]
        return {"id": name, "prompt_token_ids": token_ids, "probe_positions": [i - 1 for i, _ in judged],
                "probe_target_ids": [token_ids[i] for i, _ in judged], "probe_kinds": [kind for _, kind in judged]}


def runs(prompt, kinds):
    """Returns (first, count), in token indices, of each run of consecutive probes of these kinds."""
    found = []
    for position, kind in zip(prompt["probe_positions"], prompt["probe_kinds"], strict=True):
        if kind not in kinds:
            continue
        if found and sum(found[-1]) == position + 1:
            found[-1][1] += 1
        else:
            found.append([position + 1, 1])
    return found
