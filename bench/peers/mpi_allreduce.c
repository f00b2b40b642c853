// One rank of the Open MPI variants: MPI_Allreduce in place on all parameters as one vector of floats.
//   mpi_allreduce SIZES ITERATIONS
// Rank 0 prints JSON lines: {"warm"}, {"seconds"} of the slowest rank per iteration, {"cpu_seconds"} of all ranks.
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

// As in node.cc: one element in so many, and the last, carries a known value; the others 0.
#define CHECKED_STRIDE 65537

static double cpu_seconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void fail(const char* what) {
  fprintf(stderr, "mpi_allreduce: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// The sum of all numbers in lines NAME ELEMENTS ELEMENTS ...
static long read_elements(const char* path) {
  FILE* file = fopen(path, "r");
  char line[4096];
  long total = 0;
  if (file == NULL) fail("the sizes file cannot be read");
  while (fgets(line, sizeof line, file) != NULL) {
    strtok(line, " \n");
    for (char* word; (word = strtok(NULL, " \n")) != NULL;) total += atol(word);
  }
  fclose(file);
  if (total < 1) fail("the sizes file has no elements");
  return total;
}

static void set(float* values, long elements, float value) {
  for (long i = 0; i < elements; i += CHECKED_STRIDE) values[i] = value;
  values[elements - 1] = value;
}

static void check(const float* values, long elements, double expected) {
  for (long i = 0; i < elements; i += CHECKED_STRIDE) {
    if (fabs(values[i] - expected) > 1e-5 * expected) fail("wrong sum");
  }
  if (fabs(values[elements - 1] - expected) > 1e-5 * expected) fail("wrong sum");
}

int main(int argc, char** argv) {
  int rank = 0;
  int world = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  if (argc != 3) fail("usage: mpi_allreduce SIZES ITERATIONS");
  const long elements = read_elements(argv[1]);
  const int iterations = atoi(argv[2]);
  float* values = malloc((size_t)elements * sizeof *values);
  if (values == NULL) fail("out of memory");
  for (long i = 0; i < elements; ++i) values[i] = 0.0f;
  double cpu = 0.0;
  for (int iteration = 0; iteration <= iterations; ++iteration) {
    if (iteration == 1) {
      cpu = cpu_seconds();
      if (rank == 0) {
        printf("{\"warm\": true}\n");
        fflush(stdout);
      }
    }
    set(values, elements, (float)((rank + 1) * (iteration + 1)));
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, values, (int)elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double seconds = MPI_Wtime() - begin;
    check(values, elements, world * (world + 1) / 2.0 * (iteration + 1));
    double slowest = 0.0;
    MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0 && iteration > 0) {
      printf("{\"seconds\": %.9f}\n", slowest);
      fflush(stdout);
    }
  }
  cpu = cpu_seconds() - cpu;
  double total = 0.0;
  MPI_Reduce(&cpu, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("{\"cpu_seconds\": %.6f}\n", total);
    fflush(stdout);
  }
  free(values);
  MPI_Finalize();
  return 0;
}
