"""`make bench`: what a Kalman step costs, as ratios measured inside one run.

python -m benchmarks                    the step on tiny and on ViT-B/32 with random weights
python -m benchmarks.study DATA         what each part of the default brings
python -m benchmarks.observations DATA  which observation learns
python -m benchmarks.pairs DATA         captions
python -m benchmarks.uncertainty DATA   whether probabilities mean what they say
python -m benchmarks.averaging          what averaging over the belief costs
python -m benchmarks.stream DATA        classes that arrive one group after the other
python -m benchmarks.fusion DATA        two sites that learn apart
python -m benchmarks.unknown DATA       images of nothing it knows, and sets of classes

Accuracy beside other methods: kalmanclip compare --config benchmarks/comparison.json (see docs/results.md)
"""

from benchmarks.step import main

if __name__ == "__main__":
    main()
