"""A small coding agent against /v1/messages with Anthropic's client: it reads and writes files of one folder.

    mpk serve MODEL --any-model-name &
    python serve_agent.py FOLDER "Add a docstring to every function in add.py"
"""
import pathlib
import sys

import anthropic

TOOLS = [
    {"name": "list_files", "description": "The files of the folder.", "input_schema": {"type": "object"}},
    {"name": "read_file", "description": "The text of a file.",
     "input_schema": {"type": "object", "required": ["path"], "properties": {"path": {"type": "string"}}}},
    {"name": "write_file", "description": "Replace a file's text.",
     "input_schema": {"type": "object", "required": ["path", "text"],
                      "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}},
]


def inside(folder, path):
    """A path of the model's, which may not leave the folder."""
    found = (folder / path).resolve()
    if not found.is_relative_to(folder):
        raise ValueError(f"{path} is outside the folder")
    return found


def use(folder, name, arguments):
    if name == "list_files":
        return "\n".join(str(p.relative_to(folder)) for p in sorted(folder.rglob("*")) if p.is_file())
    path = inside(folder, arguments["path"])
    if name == "read_file":
        return path.read_text()
    path.write_text(arguments["text"])
    return "written"


def result_of(folder, call):
    try:
        content, failed = use(folder, call.name, call.input), False
    except (OSError, KeyError, ValueError) as e:
        content, failed = str(e), True
    return {"type": "tool_result", "tool_use_id": call.id, "content": content, "is_error": failed}


def work(client, folder, task, most_rounds=20):
    messages = [{"role": "user", "content": task}]
    for _ in range(most_rounds):
        with client.messages.stream(model="local", max_tokens=4096, tools=TOOLS, messages=messages) as stream:
            for words in stream.text_stream:
                print(words, end="", flush=True)
            reply = stream.get_final_message()
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            break
        for call in calls:
            print(f"\n[{call.name} {call.input.get('path', '')}]")
        messages += [{"role": "assistant", "content": reply.content},
                     {"role": "user", "content": [result_of(folder, call) for call in calls]}]
    print()


if __name__ == "__main__":
    work(anthropic.Anthropic(base_url="http://127.0.0.1:8000", api_key="none"), pathlib.Path(sys.argv[1]).resolve(),
         sys.argv[2])
