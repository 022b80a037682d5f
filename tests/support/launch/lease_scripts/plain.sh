#!/bin/bash
#SBATCH --job-name=fdl-a1b2
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=4
#SBATCH --time=60
#SBATCH --output=/home/me/runs/a1b2/lease-%A_%a.out
#SBATCH --no-requeue
#SBATCH --export=ALL

exec srun --overlap --ntasks-per-node=1 --cpu-bind=none --mpi=none --kill-on-bad-exit=0 --wait=0 --export=ALL --output=all --error=all --job-name=farandole --input=none --nodes=1 --ntasks=1 farandole join -np 4 /home/me/runs/a1b2
