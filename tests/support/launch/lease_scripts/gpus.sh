#!/bin/bash
#SBATCH --job-name=fdl-a1b2
#SBATCH --nodes=2
#SBATCH --ntasks=16
#SBATCH --ntasks-per-node=8
#SBATCH --time=90
#SBATCH --time-min=20
#SBATCH --partition=gpu,spot
#SBATCH --account=project42
#SBATCH --qos=long
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --gres=gpu:8
#SBATCH --output="/scratch/my 100%% runs/a1b2/lease-%A_%a.out"
#SBATCH --no-requeue
#SBATCH --export=ALL
#SBATCH --constraint=a100

set -e
module load CUDA/12.4
ulimit -n 4096
export WORD='two words'
export PATH=/home/me/venv/bin:$PATH

exec srun --overlap --ntasks-per-node=1 --cpu-bind=none --mpi=none --kill-on-bad-exit=0 --wait=0 --export=ALL --output=all --error=all --job-name=farandole --input=none --nodes=2 --ntasks=2 /home/me/venv/bin/python -m farandole join -np 8 '/scratch/my 100% runs/a1b2'
