"""PyTorch as the slides of 2018 had it: a sampler, a distributed optimizer, and a broadcast.

    farandole run --horovod -np 2 python examples/talks_2018/pytorch.py

Lines marked "removed" say which name PyTorch, or a download, took away since; the part marked "added" says what was
learned. All the others are those of 2018.
"""

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torch.utils.data.distributed
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

# Initialize Horovod
hvd.init()
torch.manual_seed(42)

# Pin GPU to be used to process local rank (one GPU per process)
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())

# removed: torchvision.datasets.MNIST(download=True), a download
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)
train_images, test_images, train_labels, test_labels = train_test_split(images, labels, random_state=7)
train_dataset = torch.utils.data.TensorDataset(train_images, train_labels)

# Partition dataset among workers using DistributedSampler
train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=16, sampler=train_sampler)


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = x.view(-1, 320)
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(x), dim=1)


# Build model
model = Net()
if torch.cuda.is_available():
    model.cuda()

optimizer = optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)

# Add Horovod Distributed Optimizer
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

# Broadcast parameters from rank 0 to all other processes
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

for epoch in range(30):
    train_sampler.set_epoch(epoch)
    for batch_idx, (data, target) in enumerate(train_loader):
        if torch.cuda.is_available():
            data, target = data.cuda(), target.cuda()
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % 20 == 0 and hvd.rank() == 0:
            # removed: loss.data[0], in PyTorch 0.5
            print(
                "Train Epoch: {} [{}/{}]\tLoss: {}".format(
                    epoch, batch_idx * len(data), len(train_sampler), loss.item()
                )
            )

# added: how well it learned, and whether all ranks learned the same
model.cpu()
accuracy = (model(test_images).argmax(1) == test_labels).float().mean()
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
same = all(torch.equal(weights, other) for other in hvd.allgather_object(weights))
if hvd.rank() == 0:
    print(f"test accuracy {accuracy:.3f} on {hvd.size()} worker(s), models are equal: {same}")
