"""Fields that earlier versions had, with their defaults, so that their work directories resume.

A recorded run that has another value in such a field cannot resume with this version.
"""

REMOVED: dict[str, object] = {
    "constant_tokens": False,
    "data.answer_start": "",
    "data.max_corrupt_rows": 100,
    "data.train_split": "train",
    "length_ramp": "",
    "optimizer.cooldown_fraction": 0.0,
    "spikes.metric": "loss",
    "spikes.window": 128,
}
