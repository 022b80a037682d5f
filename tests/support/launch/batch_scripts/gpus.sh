#!/bin/bash
#SBATCH --job-name="a name"
#SBATCH --ntasks=4
#SBATCH --partition=gpu
#SBATCH --account=project42
#SBATCH --qos=long
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --gres=gpu:4
#SBATCH --output=%x-%j.out
#SBATCH --constraint=a100

set -e
module load CUDA/12.4
ulimit -n 4096
export WORD='two words'
export PATH=BIN:$PATH

exec farandole run -np 4 --verbose --engine tcp --no-horovod python 'my script.py' '$HOME'
