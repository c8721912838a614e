"""Tools: the model calls Python functions, reads their results and answers.

python examples/04_tools.py [checkpoint folder]
"""

from __future__ import annotations

import json
import sys

from minimax_m31 import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "nano"
greedy = SamplingParams(temperature=0.0, max_tokens=300)


def get_weather(city: str) -> str:
    """Get the current weather of a city.

    Args:
        city: Name of the city.
    """
    return json.dumps({"city": city, "weather": "sunny", "degrees": 21})


with LLM(model, max_num_seqs=8) as llm:
    question = [{"role": "user", "content": "What is the weather in Paris?"}]

    # One step by hand: the call with its arguments typed by the function's annotations, ...
    message = llm.chat(question, greedy, tools=[get_weather], use_tqdm=False)[0].outputs[0].message
    for call in message.tool_calls:
        print("call:", call.function.name, call.function.arguments)

    # ... its result appended, and the answer.
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": get_weather(**call.parsed_arguments())}
        for call in message.tool_calls
    ]
    turns = [*question, message.to_dict(), *results]
    answer = llm.chat(turns, greedy, tools=[get_weather], use_tqdm=False)[0].outputs[0].message
    print("answer:", answer.content)

    # The same in one call; whatever a tool raises goes back to the model as text.
    talk = llm.run_tools(question, [get_weather], greedy, max_rounds=4)
    for turn in talk.messages:
        print(f"{turn['role']}: {turn.get('content') or turn.get('tool_calls')}")
