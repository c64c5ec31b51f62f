#!/usr/bin/env python3
"""Structured extraction: facts of a text as JSON that is valid by a schema, from mpk serve.

    mpk serve MODEL & python3 examples/serve_extract.py "Ada Lovelace was born on 10 December 1815 and spoke French."

It needs the package openai.  The schema is examples/person.json.
"""

import json
import os
import pathlib
import sys

import openai

TEXT = "Ada Lovelace was born in London on 10 December 1815. She spoke English and French."


def main():
    schema = json.loads((pathlib.Path(__file__).parent / "person.json").read_text())
    client = openai.OpenAI(base_url=os.environ.get("MPK_URL", "http://127.0.0.1:8000") + "/v1",
                           api_key=os.environ.get("MPK_API_KEY", "none"))
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "system", "content": "What the text says of the person, as JSON: " + json.dumps(schema)},
                  {"role": "user", "content": " ".join(sys.argv[1:]) or TEXT}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}},
        temperature=0, max_tokens=300)
    print(json.dumps(json.loads(answer.choices[0].message.content), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
