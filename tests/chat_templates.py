"""Small models for tests: a byte-level tokenizer and chat templates in the styles of the field."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

#: Qwen2.5's style: a default system text, tool schemas in it, tool messages merged into one user block.
CHATML = (
    "{%- if tools %}<|im_start|>system\n"
    "{{ messages[0].content if messages[0].role == 'system' else 'You are helpful.' }}\n<tools>"
    "{%- for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools><|im_end|>\n"
    "{%- elif messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{%- endif %}\n"
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{%- endif %}"
    "{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{%- elif not (message.role == 'system' and tools) %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)

#: Qwen3's style: thinking is dropped from all turns but the last.
DROPS_THINKING = (
    "{%- for message in messages %}"
    "{%- set content = message.content %}"
    "{%- if message.role == 'assistant' and not loop.last and '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1] %}"
    "{%- endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)

#: Cannot be used: how many messages there are is written before them.
COUNTS_MESSAGES = "[{{ messages | length }}]" + DROPS_THINKING

#: Cannot be used: nothing closes a turn.
NO_END_OF_TURN = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"

#: Cannot be used: knows no tool messages.
NO_TOOLS = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('Only user and assistant!') }}"
    "{% endif %}{{ message.content }}<|im_end|>{% endfor %}"
)

#: Mistral's style up to version 7 of its tokenizers: a list of calls, ids of nine characters, roles that have to
#: alternate, and the tools before the newest question only.
MISTRAL = (
    "{{- bos_token }}"
    "{%- set asked = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{%- set spoken = messages | rejectattr('role', 'equalto', 'tool') | selectattr('tool_calls', 'undefined') %}"
    "{%- for message in spoken %}{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('roles must alternate') }}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' %}"
    "{%- if tools and message == asked[-1] %}"
    "{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{{- '[INST]' + message.content + '[/INST]' }}"
    "{%- elif message.tool_calls is defined %}"
    "{{- '[TOOL_CALLS][' }}"
    "{%- for call in message.tool_calls %}"
    '{{- \'{"name": "\' + call.function.name + \'", "arguments": \' + call.function.arguments | tojson }}'
    "{{- ', \"id\": \"' + call.id + '\"}' + ('' if loop.last else ', ') }}"
    "{%- endfor %}{{- ']' + eos_token }}"
    "{%- elif message.role == 'tool' %}"
    "{%- if message.tool_call_id is undefined or message.tool_call_id | length != 9 %}"
    "{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}"
    "{{- '[TOOL_RESULTS]{\"content\": ' + message.content | tojson }}"
    "{{- ', \"call_id\": \"' + message.tool_call_id + '\"}[/TOOL_RESULTS]' }}"
    "{%- else %}{{- message.content + eos_token }}{%- endif %}"
    "{%- endfor %}"
)

#: Mistral's style from version 11 on: name and arguments of each call behind tokens of their own.
MISTRAL_NAMED = (
    "{{- bos_token }}{%- if tools %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' %}{{- '[INST]' + message.content + '[/INST]' }}"
    "{%- elif message.tool_calls is defined %}"
    "{%- for call in message.tool_calls %}"
    "{{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' + call.function.arguments | tojson }}"
    "{%- endfor %}{{- eos_token }}"
    "{%- elif message.role == 'tool' %}"
    "{{- '[TOOL_RESULTS]' + message.tool_call_id + '[TOOL_CONTENT]' + message.content + '[/TOOL_RESULTS]' }}"
    "{%- else %}{{- message.content + eos_token }}{%- endif %}"
    "{%- endfor %}"
)

#: Llama 3.2's Python-call style: the form is told in the system text, results come from ``ipython``.
LLAMA_PYTHONIC = (
    "{{- bos_token }}{%- if tools %}{{- '<|start_header_id|>system<|end_header_id|>\n\nYou can call functions, as "
    "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)].\n' }}"
    "{%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}{{- '<|eot_id|>' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- set role = 'ipython' if message.role == 'tool' else message.role %}"
    "{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}"
    "{%- if message.tool_calls is defined %}"
    "{{- '[' }}{%- for call in message.tool_calls %}{{- call.function.name + '(' }}"
    "{%- for key, value in call.function.arguments | items %}"
    "{{- key + '=' + value | tojson + ('' if loop.last else ', ') }}{%- endfor %}"
    "{{- ')' + ('' if loop.last else ', ') }}{%- endfor %}{{- ']' }}"
    "{%- else %}{{- message.content }}{%- endif %}{{- '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)

#: Special tokens of the families; in each model's own tokenizer a token of the template is one token too.
SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
    *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[CALL_ID]"),
    *("[ARGS]", "[TOOL_RESULTS]", "[TOOL_CONTENT]", "[/TOOL_RESULTS]", "<|tool_call_start|>", "<|tool_call_end|>"),
]

#: How Llama 3, Qwen and Mistral split a text before they merge, as published in their ``tokenizer.json``.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_tokenizer() -> Tokenizer:
    """Every byte is a token; a few merges make most texts encodable in more than one way."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ċ", "Ċ"), ("o", "n"), ("e", "r")]
    vocab = {token: i for i, token in enumerate(alphabet + [a + b for a, b in merges])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)])
    return tokenizer


def write_model(folder: Path, template: str = CHATML) -> Path:
    """A model folder as far as an actor reads it: no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": {"content": "<|im_end|>"}, "bos_token": None, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ends = [tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder
