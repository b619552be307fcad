"""`make bench`: what a Kalman step costs, as ratios measured inside one run.

python -m benchmarks                    the step on tiny and on ViT-B/32 with random weights
python -m benchmarks.accuracy DATA      zero-shot against tuned accuracy (see that file)
"""

from benchmarks.step import main

if __name__ == "__main__":
    main()
