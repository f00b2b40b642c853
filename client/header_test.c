/* The header alone, as C11 without extensions: compiling this file is the test. */
#include <poseidon/client.h>

int use_everything(const char* job, const char* options);

int use_everything(const char* job, const char* options) {
  poseidon_client* client = 0;
  float *parameters = 0, *gradients = 0, *state = 0;
  int64_t elements = 0, iteration = 0;
  poseidon_result result = poseidon_create(job, options, &client);
  if (result != POSEIDON_OK) return poseidon_message()[0];
  result = poseidon_layer(client, 0, &parameters, &gradients, &elements);
  if (result == POSEIDON_OK) result = poseidon_state(client, &state, &elements);
  if (result == POSEIDON_OK) result = poseidon_join(client, &iteration);
  if (result == POSEIDON_OK) result = poseidon_gradient(client, 0);
  double norm = 0.0;
  const poseidon_rate rate = {0.1, 0.0};
  if (result == POSEIDON_OK) result = poseidon_gradient_norm(client, &norm);
  if (result == POSEIDON_OK) result = poseidon_rates(client, &rate, 1, norm > 1.0 ? 1.0 / norm : 1.0);
  if (result == POSEIDON_OK) result = poseidon_step(client, 0.5);
  if (result == POSEIDON_OK) result = poseidon_wait(client, 0);
  if (result == POSEIDON_OK) result = poseidon_wait_all(client);
  if (result == POSEIDON_OK) result = poseidon_finish(client);
  if (result != POSEIDON_OK) result = poseidon_fail(client, poseidon_message());
  elements = poseidon_rank(client) + poseidon_world_size(client) + poseidon_iteration(client);
  poseidon_destroy(client);
  return (int)result + (int)elements + poseidon_abi_version();
}
