"""What SQuAD's scripts and run_squad compute, once more, as plain loops over one question at a time."""

import re
import string


def normalized(text):
    """Lower-cased words, no ASCII punctuation, no articles."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def f1(answer, prediction, v2):
    expected, given = normalized(answer), normalized(prediction)
    if v2 and (not expected or not given):
        return float(expected == given)
    same, left = 0, list(expected)
    for word in given:
        if word in left:
            left.remove(word)
            same += 1
    if same == 0:
        return 0.0
    precision, recall = same / len(given), same / len(expected)
    return 2 * precision * recall / (precision + recall)


def scores(answers, prediction, v2):
    """(exact, f1) of one question."""
    if v2:
        answers = [answer for answer in answers if normalized(answer)] or [""]
    exact = max(float(" ".join(normalized(a)) == " ".join(normalized(prediction))) for a in answers)
    return exact, max(f1(a, prediction, v2) for a in answers)


def best_threshold(values, answerable, predictions, odds):
    """The official search: questions in the order of their odds, answered one after another."""
    current = best = sum(not has for has in answerable)
    threshold = 0.0
    for i in sorted(range(len(odds)), key=lambda i: odds[i]):
        current += values[i] if answerable[i] else -1 if predictions[i] else 0
        if current > best:
            best, threshold = current, odds[i]
    return 100.0 * best / len(odds), threshold


def answers_of(windows, context, n_best, longest, v2):
    """The n best answers of one question: (text, start logit, end logit) in order, and the odds of none.

    `windows`: (start logits, end logits, (begin, end) characters or None, max-context flags) of each.
    """
    found, null = [], None
    for starts, ends, characters, best in windows:
        if v2 and (null is None or starts[0] + ends[0] < sum(null)):
            null = (starts[0], ends[0])
        top_starts = sorted(range(len(starts)), key=lambda i: -starts[i])[:n_best]
        top_ends = sorted(range(len(ends)), key=lambda i: -ends[i])[:n_best]
        for i in top_starts:
            for j in top_ends:
                if characters[i] and characters[j] and best[i] and 0 <= j - i < longest:
                    text = re.sub("[ \t\r\n\u202f]+", " ", context[characters[i][0] : characters[j][1]])
                    found.append((text, starts[i], ends[j]))
    if v2:
        found.append(("", *null))
    found.sort(key=lambda candidate: -(candidate[1] + candidate[2]))
    kept = []
    for candidate in found:
        if len(kept) < n_best and candidate[0] not in [text for text, *_ in kept]:
            kept.append(candidate)
    if v2 and "" not in [text for text, *_ in kept]:
        kept.append(("", *null))
    if not kept:
        kept.append(("empty", 0.0, 0.0))
    answer = next((candidate for candidate in kept if candidate[0]), kept[0])
    return kept, (sum(null) - answer[1] - answer[2] if v2 else None)
