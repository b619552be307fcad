"""`make bench`: what a Kalman step costs, as ratios measured inside one run.

python -m benchmarks                    the step on tiny and on ViT-B/32 with random weights
python -m benchmarks.study DATA         what each part of the default brings
python -m benchmarks.observations DATA  which observation learns
python -m benchmarks.pairs DATA         captions

Accuracy beside other methods: kalmanclip compare --config benchmarks/comparison.json (see docs/results.md)
"""

from benchmarks.step import main

if __name__ == "__main__":
    main()
