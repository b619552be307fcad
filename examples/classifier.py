"""A classifier of handwritten digits that sees each of 200 images once, and has nothing to tune."""

import torch
from sklearn.datasets import load_digits

from kalmanclip.filtering import FilterConfig, KalmanFilter, choose_prior, load_flat, make_belief, observe_labels

images, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
images = images.float() / 16
train, test = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).split([200, 1597])
module = torch.nn.Linear(64, 10)


def make(variance: float) -> KalmanFilter:
    return KalmanFilter(make_belief("dense", torch.zeros(650), variance), config=FilterConfig(alpha=0.0))


choice = choose_prior(make, [observe_labels(module, images[b], labels[b]) for b in train.split(20)])
load_flat(module, choice.kalman.belief.mean)
accuracy = (module(images[test]).argmax(dim=1) == labels[test]).float().mean()
print(f"prior variance {choice.variance:.2g}, accuracy on {len(test)} other images {accuracy:.3f}")
