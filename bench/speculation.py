"""Tokens a second with speculation and without, of a real model, on code that is edited and texts that are summarised.

python bench/speculation.py MODEL [--rounds N] [--threads N] [--drafts N ...] [--ngram N ...] [--draft-model PATH ...]

Each text is a chat of one turn, answered greedily, once by each engine and round, alternating.  The rate is that of
decoding: tokens after the first over their time, the least time of the rounds.  Answers that repeat one line or one
short phrase for ever are named and left out of the mean; all answers must be equal, token by token.  A draft model
guesses alone (ngram 0) and after look-up.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

CODE = '''def mean(values):
    total = 0
    for value in values:
        total = total + value
    return total / len(values)


def variance(values):
    center = mean(values)
    total = 0
    for value in values:
        total = total + (value - center) ** 2
    return total / (len(values) - 1)


def deviation(values):
    return variance(values) ** 0.5


class Table:
    def __init__(self, names):
        self.names = names
        self.rows = []

    def add(self, row):
        if len(row) != len(self.names):
            raise ValueError("a row has another length")
        self.rows.append(row)

    def column(self, name):
        index = self.names.index(name)
        return [row[index] for row in self.rows]

    def describe(self, name):
        values = self.column(name)
        return {"mean": mean(values), "deviation": deviation(values), "least": min(values), "most": max(values)}
'''
QUEUE = '''#include <stdlib.h>

typedef struct queue {
    int *items;
    size_t n, first, capacity;
} queue;

int queue_open(queue *q, size_t capacity)
{
    q->items = malloc(capacity * sizeof *q->items);
    q->n = q->first = 0;
    q->capacity = capacity;
    return q->items != NULL;
}

int queue_put(queue *q, int item)
{
    if (q->n == q->capacity)
        return 0;
    q->items[(q->first + q->n) % q->capacity] = item;
    q->n++;
    return 1;
}

int queue_take(queue *q, int *item)
{
    if (q->n == 0)
        return 0;
    *item = q->items[q->first];
    q->first = (q->first + 1) % q->capacity;
    q->n--;
    return 1;
}

void queue_close(queue *q)
{
    free(q->items);
}
'''
RIVER = '''The Elbe rises in the Giant Mountains of the northern Czech Republic before it crosses Bohemia, then
Germany, and flows into the North Sea at Cuxhaven, 110 kilometres northwest of Hamburg. Its total length
is 1,094 kilometres. The main tributaries of the Elbe are the rivers Vltava, Saale, Havel, Mulde,
Schwarze Elster, and Ohre. The Elbe river basin, comprising the Elbe and its tributaries, has a
catchment area of 148,268 square kilometres, the twelfth largest in Europe. The basin spans four
countries; its largest parts are in Germany with 65.5 percent and in the Czech Republic with 33.7
percent. Much smaller parts lie in Austria and in Poland. The basin is inhabited by 24.4 million people;
its biggest cities are Berlin, Hamburg, Prague, Dresden and Leipzig.'''
MEETING = '''Anna Berger opened the meeting of the library committee at nine. The committee agreed to buy new shelves
for the reading room, which cost 4,200 euros, and to move the old shelves to the cellar. Paul Novak said
that the roof above the reading room leaks, and that the repair would cost 11,500 euros. The committee
agreed to repair the roof before the new shelves are bought. Anna Berger will ask the town for half of
the money. Paul Novak will ask three companies for an offer. Maria Lind reported that the library had
31,000 visitors last year, 2,000 more than the year before. The committee thanked Maria Lind for her
work. The next meeting of the library committee is on the third of May.'''
TASKS = {
    "rename": f"Rewrite this Python code. Rename total to result. Change nothing else.\n\n```python\n{CODE}```",
    "docstrings": f"Add a short docstring to each function of this Python code.\n\n```python\n{CODE}```",
    "types": f"Add type annotations to this Python code. Repeat the whole code.\n\n```python\n{CODE}```",
    "c edit": f"Rename queue_take to queue_get in this C code. Repeat the whole code.\n\n```c\n{QUEUE}```",
    "c comments": f"Add a comment before each function of this C code.\n\n```c\n{QUEUE}```",
    "river": f"Summarize this text in a few sentences.\n\n{RIVER}",
    "meeting": f"Summarize these minutes. List every decision.\n\n{MEETING}",
    "correct": f"Correct this text and repeat it.\n\n{MEETING}",
}


def loops(tokens):
    """Does the last third say the same few tokens again and again?"""
    end = tokens[len(tokens) * 2 // 3:]
    return any(all(end[i] == end[i - n] for i in range(n, len(end))) for n in range(1, len(end) // 3 + 1))


def ask(llm, prompt, tokens):
    import mpk
    times, ids = [], []
    for piece in llm.stream(prompt, mpk.SamplingParams(max_tokens=tokens, raw_prompt=True)):
        times.append(time.perf_counter())
        ids.append(len(piece.token_ids))
    return (sum(ids) - ids[0]) / (times[-1] - times[0])


def answer(llm, prompt, tokens):
    import mpk
    return llm.generate([prompt], mpk.SamplingParams(max_tokens=tokens, raw_prompt=True))[0]


def options(shape):
    """What an engine speculates with: (drafts, ngram or 0, draft model or None); None: nothing."""
    if shape is None:
        return {}
    drafts, ngram, model = shape
    return {"draft_tokens": drafts, "draft_model": model,
            **({"speculation": "ngram", "draft_ngram": ngram} if ngram else {})}


def measure(path, arguments):
    import mpk
    shapes = [None, *((d, n, None) for d in arguments.drafts for n in arguments.ngram),
              *((d, n, m) for m in arguments.draft_model for d in arguments.drafts for n in (0, *arguments.ngram))]
    engines = [mpk.LLM(path, device=arguments.device, threads=arguments.threads, max_batch=1, context_tokens=2048,
                       kv_tokens=4096, batch_invariant=arguments.device != "cpu", **options(s))
               for s in shapes]
    rows = []
    for name, words in TASKS.items():
        prompt = engines[0].chat_prompt([{"role": "user", "content": words}])
        answers = [answer(llm, prompt, arguments.tokens) for llm in engines]
        assert all(a.token_ids == answers[0].token_ids for a in answers), f"{name}: answers differ"
        best = [0.0] * len(engines)
        for _ in range(arguments.rounds):
            for i, llm in enumerate(engines):
                best[i] = max(best[i], ask(llm, prompt, arguments.tokens))
        rows.append({"task": name, "tokens": len(answers[0].token_ids), "loops": loops(answers[0].token_ids),
                     "runs": [{"shape": s, "tokens_per_s": round(b, 1), "gain": round(b / best[0], 3),
                               "drafted": a.drafted_tokens, "accepted": a.accepted_tokens}
                              for s, b, a in zip(shapes, best, answers)]})
        print(json.dumps(rows[-1]), flush=True)
    for i, shape in enumerate(shapes):
        gains = [r["runs"][i]["gain"] for r in rows if not r["loops"]]
        mean = round(statistics.geometric_mean(gains), 3)
        print(shape, "mean gain of", len(gains), "answers that do not loop:", mean)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--device", default="cpu", help="cpu, or a GPU: with the same bits in any company")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--tokens", type=int, default=200)
    p.add_argument("--drafts", type=int, nargs="+", default=[8])
    p.add_argument("--ngram", type=int, nargs="+", default=[3])
    p.add_argument("--draft-model", nargs="+", default=[])
    arguments = p.parse_args()
    measure(arguments.model, arguments)


if __name__ == "__main__":
    main()
