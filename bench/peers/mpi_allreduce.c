// One rank of the Open MPI variants: MPI_Allreduce in place on all parameters as one vector of floats.
//   mpi_allreduce SIZES ITERATIONS
// Rank 0 prints JSON lines: {"warm"}, {"seconds"} of the slowest rank per iteration, {"cpu_seconds"} of all ranks.
//
//   mpi_allreduce SIZES ITERATIONS COMPUTE_S OPTIMIZER_S POLL_S
// An emulated device computes for COMPUTE_S before each sum and for OPTIMIZER_S after it; one iteration follows the other
// without a barrier. Open MPI waits by asking again and again, which would take the cores from the other hosts for
// as long as a slow network needs; so the sum is MPI_Iallreduce and is asked for every POLL_S. Rank 0 prints {"end", "cpu_s"}
// per iteration: when the slowest rank was done, by the clock that all hosts share, and CPU time of all ranks until then.
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

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

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void sleep_until(double moment) {
  const double whole = floor(moment);
  const struct timespec time = {.tv_sec = (time_t)whole, .tv_nsec = (long)((moment - whole) * 1e9)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR) {
  }
}

struct emulated {
  double compute_s;
  double optimizer_s;
  double poll_s;
};

static double seconds_of(const char* word) {
  char* end = NULL;
  const double seconds = strtod(word, &end);
  if (end == word || *end != '\0' || !(seconds >= 0.0)) fail("COMPUTE_S, OPTIMIZER_S and POLL_S are seconds, 0 or more");
  return seconds;
}

// Iterations of an emulated device, see above.
static void emulate(float* values, long elements, int iterations, int rank, int world, struct emulated device) {
  double free_at = now();
  for (int iteration = 0; iteration < iterations; ++iteration) {
    free_at += device.compute_s;
    // While the device computes.
    set(values, elements, (float)((rank + 1) * (iteration + 1)));
    sleep_until(free_at);
    MPI_Request request;
    MPI_Iallreduce(MPI_IN_PLACE, values, (int)elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
    for (int done = 0; !done;) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (!done) sleep_until(now() + device.poll_s);
    }
    free_at = fmax(free_at, now()) + device.optimizer_s;
    sleep_until(free_at);
    double end = now();
    double cpu = cpu_seconds();
    // From here on the device computes again: none of this is waited for.
    check(values, elements, world * (world + 1) / 2.0 * (iteration + 1));
    double slowest = 0.0;
    double total = 0.0;
    MPI_Reduce(&end, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&cpu, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
      printf("{\"end\": %.9f, \"cpu_s\": %.6f}\n", slowest, total);
      fflush(stdout);
    }
    free_at = end;
  }
}

// Iterations of nothing but the sum, see above.
static void measure(float* values, long elements, int iterations, int rank, int world) {
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
}

int main(int argc, char** argv) {
  int rank = 0;
  int world = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  if (argc != 3 && argc != 6) fail("usage: mpi_allreduce SIZES ITERATIONS [COMPUTE_S OPTIMIZER_S POLL_S]");
  const long elements = read_elements(argv[1]);
  const int iterations = atoi(argv[2]);
  float* values = malloc((size_t)elements * sizeof *values);
  if (values == NULL) fail("out of memory");
  for (long i = 0; i < elements; ++i) values[i] = 0.0f;
  if (argc == 6) {
    emulate(values, elements, iterations, rank, world,
            (struct emulated){seconds_of(argv[3]), seconds_of(argv[4]), seconds_of(argv[5])});
  } else {
    measure(values, elements, iterations, rank, world);
  }
  free(values);
  MPI_Finalize();
  return 0;
}
