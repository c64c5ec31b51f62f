"""Tools with mpk serve and OpenAI's client: the model calls, the client computes, the model answers.

    mpk serve MODEL &
    python serve_tools.py "What is 12 times 34?"
"""
import json
import operator
import sys

import openai

CALCULATE = {"type": "function", "function": {
    "name": "calculate", "description": "Compute with two numbers.",
    "parameters": {"type": "object", "required": ["operation", "a", "b"], "properties": {
        "operation": {"type": "string", "enum": ["add", "sub", "mul", "truediv"]},
        "a": {"type": "number"}, "b": {"type": "number"}}}}}


def calculate(operation, a, b):
    allowed = CALCULATE["function"]["parameters"]["properties"]["operation"]["enum"]
    if operation not in allowed:
        raise ValueError(f"the operation is not one of {allowed}")
    return getattr(operator, operation)(a, b)


def result_of(call):
    """What the model is told: the result, or what was wrong with the call."""
    try:
        return str(calculate(**json.loads(call.function.arguments)))
    except (TypeError, ValueError, ZeroDivisionError) as e:
        return f"Error: {e}"


def answer(client, question, most_rounds=5):
    messages = [{"role": "user", "content": question}]
    model = client.models.list().data[0].id
    for _ in range(most_rounds):
        message = client.chat.completions.create(model=model, messages=messages, tools=[CALCULATE]).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            print(f"{call.function.name}({call.function.arguments})", file=sys.stderr)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result_of(call)})
    return "the model calls without end"


if __name__ == "__main__":
    print(answer(openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none"), sys.argv[1]))
