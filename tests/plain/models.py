"""Many small models, trained in threads: a plain script. `jobs` are examples/many_models.py's."""

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import many_models


def place(jobs):
    for job in jobs:
        job.model.to("cuda" if torch.cuda.is_available() else "cpu")


def main(place):
    torch.set_num_threads(1)
    jobs = many_models.make_jobs(int(sys.argv[1]))
    place(jobs)
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(many_models.train, job, 30) for job in jobs]:
            done.result()
    told = "".join(f"{job.steps} {job.loss!r}\n" for job in jobs)
    devices = sorted({str(job.device) for job in jobs})
    print(*devices, hashlib.sha256(told.encode()).hexdigest())


if __name__ == "__main__":
    main(place)
