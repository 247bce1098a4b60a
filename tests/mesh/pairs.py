"""Files of pairs of answers, and of answers with labels, made as doc/data.md describes, without Sherd."""
import array
import pathlib
import random
import struct


def draw_pairs(seed, count, words, longest=4):
    """Prompts and answers of random ids: (prompt, chosen, rejected), each a list."""
    draw = random.Random(seed)

    def some(least):
        return [draw.randrange(words) for _ in range(draw.randint(least, longest))]

    return [(some(2), some(1), some(1)) for _ in range(count)]


def write(name, pairs, words, flags=3, masks=None):
    """Documents 2i and 2i + 1 are the answers of pair i after its prompt. masks: one bit a token, None: the answers.
    Returns the absolute path."""
    return write_documents(name, [(prompt, answer) for prompt, *answers in pairs for answer in answers], words, flags, masks)


def draw_answers(seed, count, words, longest=4):
    """Prompts and answers of random ids, with a label: (prompt, answer, 0 or 1)."""
    draw = random.Random(seed)
    return [(prompt, answer, draw.randrange(2)) for prompt, answer, _ in draw_pairs(seed, count, words, longest)]


def write_answers(name, answers, words, flags=5, masks=None):
    """Documents of prompts and answers. The bit of a document's first token is its label."""
    bits = masks or [bit for prompt, answer, label in answers
                     for bit in [label] + [0] * (len(prompt) - 1) + [1] * len(answer)]
    return write_documents(name, [pair[:2] for pair in answers], words, flags, bits,
                           learned=sum(len(answer) for _, answer, _ in answers))


def write_values(name, documents, numbers, words, pairs=False):
    """Documents with a number each, or a list of so many, which end with a token that alone is a target."""
    return write_documents(name, [(document, [0]) for document in documents], words, 11 if pairs else 9, numbers=numbers)


def write_documents(name, documents, words, flags, masks=None, learned=None, numbers=None):
    """masks: one bit a token, None: the answers."""
    tokens = [token for prompt, answer in documents for token in prompt + answer]
    bits = masks or [bit for prompt, answer in documents for bit in [0] * len(prompt) + [1] * len(answer)]
    learned, bits = sum(bits) if learned is None else learned, bits + [0] * 7
    offsets = [0]
    for prompt, answer in documents:
        offsets.append(offsets[-1] + len(prompt) + len(answer))
    mask = bytes(sum(bits[i + k] << k for k in range(8)) for i in range(0, len(tokens), 8))
    sections = [array.array('q', offsets).tobytes(), array.array('H', tokens).tobytes(), mask]
    width = len(numbers[0]) if numbers and isinstance(numbers[0], list) else 0
    sections += [array.array('d', sum(numbers, []) if width else numbers).tobytes()] if numbers else []
    places, end = [], 4096
    for section in sections:
        places.append(end)
        end += (len(section) + 4095) // 4096 * 4096
    header = struct.pack('<4i5qQiiq', 0x44524853, 1, 2, flags, len(tokens), len(documents), *places[:3], 0, words, 0, learned)
    header += bytes(24) + struct.pack('<2q', places[3], width) if numbers else b''
    data = bytearray(header.ljust(4096, b'\0'))
    for place, section in zip(places, sections):
        data.extend(bytes(place - len(data)) + section)
    path = pathlib.Path(name).absolute()
    path.write_bytes(data)
    return str(path)
