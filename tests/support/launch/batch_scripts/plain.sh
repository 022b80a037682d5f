#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --ntasks-per-node=4
#SBATCH --time=1:00:00
#SBATCH --output=%x-%j.out

set -e
export PATH=BIN:$PATH

exec farandole run -np 8 python train.py --lr 0.1
