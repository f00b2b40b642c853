"""Open MPI's variants."""

import open_mpi
from measurement import collect


def run(job, segmented):
    with job.processes() as processes:
        mpirun = open_mpi.start(processes, job.hosts, job.folder, [job.mpi_program, job.sizes, job.iterations],
                                open_mpi.SEGMENTED if segmented else [])
        return collect([mpirun], job.iterations)
