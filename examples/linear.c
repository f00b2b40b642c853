/* Trains y = a x + b on several workers, with a gradient of its own: all that a program needs of
 * poseidon/client.h. examples/README.md says how to run it.
 *
 *   poseidon-example-linear COORDINATOR WORKERS
 */
#include <poseidon/client.h>
#include <stdio.h>
#include <stdlib.h>

enum { kSteps = 200, kSamples = 16 };

static const char kJob[] =
    "{\"name\": \"linear\", \"iterations\": 200, \"batch_size\": 16,"
    " \"model\": {\"name\": \"linear.c\", \"declared\": ["
    "   {\"name\": \"line\", \"type\": \"linear\", \"tensors\": ["
    "     {\"name\": \"weight\", \"shape\": [1, 1]}, {\"name\": \"bias\", \"shape\": [1]}]}]},"
    " \"optimizer\": {\"learning_rate\": 0.1}}";

/* A result that the program cannot go on with ends it. */
static poseidon_result check(const char* call, poseidon_result result) {
  if (result == POSEIDON_OK || result == POSEIDON_REWOUND) return result;
  fprintf(stderr, "%s: %s\n", call, poseidon_message());
  exit(1);
}

/* The same numbers in every run, others for every step, worker and sample: from -1 to 1. */
static float sample(int64_t step, int rank, int number) {
  uint32_t hash = (uint32_t)(step * 7919 + rank * 104729 + number * 1299709 + 12345);
  hash = (hash ^ (hash >> 16)) * 0x45d9f3bu;
  hash = (hash ^ (hash >> 16)) * 0x45d9f3bu;
  return (float)((hash ^ (hash >> 16)) % 20001) / 10000.0f - 1.0f;
}

/* Mean of the squared errors over this worker's samples, and its gradient. */
static double gradient_of(const float* line, int64_t step, int rank, float* gradient) {
  double loss = 0.0, by_weight = 0.0, by_bias = 0.0;
  for (int i = 0; i < kSamples; ++i) {
    const double x = sample(step, rank, i);
    const double error = line[0] * x + line[1] - (2.0 * x + 1.0);
    loss += error * error / kSamples;
    by_weight += 2.0 * error * x / kSamples;
    by_bias += 2.0 * error / kSamples;
  }
  gradient[0] = (float)by_weight;
  gradient[1] = (float)by_bias;
  return loss;
}

int main(int argc, char** argv) {
  char options[256];
  poseidon_client* client = NULL;
  float *line = NULL, *gradient = NULL;
  if (argc != 3) {
    fprintf(stderr, "usage: %s COORDINATOR WORKERS\n", argv[0]);
    return 2;
  }
  snprintf(options, sizeof(options), "{\"coordinator\": \"%.128s\", \"workers\": %d}", argv[1],
           atoi(argv[2]));
  check("poseidon_create", poseidon_create(kJob, options, &client));
  check("poseidon_layer", poseidon_layer(client, 0, &line, &gradient, NULL));
  line[0] = 0.5f; /* worker 0's count */
  line[1] = 0.0f;
  check("poseidon_join", poseidon_join(client, NULL));

  /* Each turn is one iteration, or none: POSEIDON_REWOUND says that a node was lost and that the
   * job has gone back to poseidon_iteration(), with the parameters of then in memory. */
  for (;;) {
    const int64_t step = poseidon_iteration(client);
    double loss;
    if (step == kSteps) {
      if (check("poseidon_finish", poseidon_finish(client)) == POSEIDON_OK) break;
      continue;
    }
    if (check("poseidon_wait", poseidon_wait(client, 0)) == POSEIDON_REWOUND) continue;
    loss = gradient_of(line, step, poseidon_rank(client), gradient);
    if (check("poseidon_gradient", poseidon_gradient(client, 0)) == POSEIDON_REWOUND) continue;
    if (check("poseidon_step", poseidon_step(client, loss)) == POSEIDON_REWOUND) continue;
    if (step % 50 == 0) printf("step %d: loss %.6f\n", (int)step, loss);
  }
  printf("worker %d of %d: y = %.4f x + %.4f\n", poseidon_rank(client), poseidon_world_size(client),
         line[0], line[1]);
  poseidon_destroy(client);
  return 0;
}
