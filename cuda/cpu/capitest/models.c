/* Models: descriptions, binding, sealing, digests and faults. */
#include "models.h"

#include <math.h>

#include "check.h"

plain_model tiny_model(void) {
  plain_model m;
  memset(&m, 0, sizeof m);
  m.layers = 2;
  m.hidden = 256;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 64;
  m.ffn = 512;
  m.vocab = 83; /* not a whole number of panels */
  m.context = 512;
  m.rope_dims = 64;
  m.rope_style = MR_ROPE_NEOX;
  m.rope_base = 10000;
  m.rope_scale = 1;
  m.norm_eps = 1e-5f;
  return m;
}

mr_error *create(mr_device *device, const plain_model *m, mr_model **model) {
  plain_arrays arrays;
  const mr_model_desc desc = plain_desc(m, &arrays);
  return api->model_create(device, &desc, model);
}

mr_tensor_desc tensor_of(int32_t role, int32_t layer, int32_t type, int64_t in, int64_t out) {
  mr_tensor_desc tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.struct_size = sizeof tensor;
  tensor.role = role;
  tensor.layer = layer;
  tensor.type = type;
  tensor.ndims = out == 0 ? 1 : 2;
  tensor.dims[0] = in;
  tensor.dims[1] = out;
  return tensor;
}

/* ggml's formats: id, elements and bytes of a block. */
static const struct { int32_t type, elements, bytes; } formats[] = {
    {0, 1, 4},     {1, 1, 2},     {2, 32, 18},    {3, 32, 20},    {6, 32, 22},    {7, 32, 24},
    {8, 32, 34},   {12, 256, 144}, {13, 256, 176}, {14, 256, 210}, {20, 32, 18},  {30, 1, 2},
    {10, 256, 84}, {11, 256, 110}, {16, 256, 66}, {17, 256, 74}, {18, 256, 98}, {21, 256, 110}, {22, 256, 82}, {23, 256, 136},
    {39, 32, 17}};
enum { format_count = sizeof formats / sizeof formats[0] };

static uint64_t bytes_of(const mr_tensor_desc *tensor) {
  int i;
  for (i = 0; i < format_count; ++i)
    if (formats[i].type == tensor->type)
      return (uint64_t)(tensor->dims[0] / formats[i].elements) * (uint64_t)formats[i].bytes *
             (uint64_t)(tensor->ndims == 2 ? tensor->dims[1] : 1);
  CHECK(0);
  return 0;
}

/* Binds random bytes: numbers of a sensible size for F32, any bits at all otherwise. Checks the digest. */
static void bind_random(mr_device *device, mr_model *model, mr_tensor_desc tensor, int32_t index, uint64_t seed) {
  const uint64_t size = bytes_of(&tensor);
  uint8_t *bytes = malloc(size);
  mr_buffer *buffer;
  mr_digest want, got;
  uint64_t i, resident = 0, used = info_of(device).bytes_used[MR_PURPOSE_WEIGHTS];
  CHECK(bytes != NULL);
  for (i = 0; i < size; ++i) bytes[i] = (uint8_t)next_random(&seed);
  if (tensor.type == 0)
    for (i = 0; i < size / 4; ++i) {
      const float value = tensor.ndims == 1 ? 1 + next_float(&seed) / 8 : next_float(&seed) / 8;
      memcpy(bytes + i * 4, &value, 4);
    }
  buffer = upload(device, bytes, size);
  OK(api->buffer_digest(buffer, 0, size, &want));
  OK(api->model_resident_size(device, &tensor, &resident));
  OK(api->model_bind(model, &tensor, buffer));
  FAILS(MR_FAILED_PRECONDITION, "given back", api->buffer_free(buffer));
  CHECK(info_of(device).bytes_used[MR_PURPOSE_WEIGHTS] == used + resident);
  CHECK(info_of(device).bytes_used[MR_PURPOSE_STAGING] == 0);
  OK(api->model_digest(model, index, &got));
  CHECK(memcmp(&want, &got, sizeof want) == 0);
  free(bytes);
}

void bind_all(mr_device *device, mr_model *model, const plain_model *d, int mixed) {
  const int64_t q = (int64_t)d->heads * d->head_dim, kv = (int64_t)d->kv_heads * d->head_dim;
  int32_t index = 0, layer;
  const int32_t types[2][7] = {{0, 0, 0, 0, 0, 0, 0}, {2, 3, 6, 7, 8, 12, 13}};
  const int32_t *t = types[mixed];
  bind_random(device, model, tensor_of(MR_ROLE_EMBEDDING, -1, mixed ? 14 : 0, d->hidden, d->vocab), index++, 1);
  bind_random(device, model, tensor_of(MR_ROLE_OUTPUT_NORM, -1, 0, d->hidden, 0), index++, 2);
  if (!d->tied_head) bind_random(device, model, tensor_of(MR_ROLE_OUTPUT, -1, mixed ? 20 : 0, d->hidden, d->vocab), index++, 3);
  for (layer = 0; layer < d->layers; ++layer) {
    const uint64_t seed = 100 + (uint64_t)layer * 10;
    const int32_t second = mixed && layer == 1;
    bind_random(device, model, tensor_of(MR_ROLE_ATTN_NORM, layer, 0, d->hidden, 0), index++, seed);
    bind_random(device, model, tensor_of(MR_ROLE_Q, layer, second ? 1 : t[0], d->hidden, q), index++, seed + 1);
    bind_random(device, model, tensor_of(MR_ROLE_K, layer, second ? 30 : t[1], d->hidden, kv), index++, seed + 2);
    bind_random(device, model, tensor_of(MR_ROLE_V, layer, t[2], d->hidden, kv), index++, seed + 3);
    bind_random(device, model, tensor_of(MR_ROLE_O, layer, t[3], q, d->hidden), index++, seed + 4);
    bind_random(device, model, tensor_of(MR_ROLE_FFN_NORM, layer, 0, d->hidden, 0), index++, seed + 5);
    bind_random(device, model, tensor_of(MR_ROLE_GATE, layer, t[4], d->hidden, d->ffn), index++, seed + 6);
    bind_random(device, model, tensor_of(MR_ROLE_UP, layer, t[5], d->hidden, d->ffn), index++, seed + 7);
    bind_random(device, model, tensor_of(MR_ROLE_DOWN, layer, t[6], d->ffn, d->hidden), index++, seed + 8);
  }
}

/* Makes a layer attention over a latent. */
static mr_mixer_desc *latent_of(mr_layer_desc *layer) {
  mr_mixer_desc *const m = &layer->mixer;
  m->kind = MR_MIX_LATENT;
  m->kv_heads = 1;
  m->key_dim = 80;
  m->latent = 40;
  return m;
}

/* tiny_model with one member of the description, of layer 1 or of the rope changed is refused. */
#define REFUSED(of, member, value, code, text)                         \
  do {                                                                 \
    plain_arrays arrays;                                               \
    const plain_model m = tiny_model();                                \
    mr_model_desc desc = plain_desc(&m, &arrays);                      \
    mr_layer_desc *layer = &arrays.layers[1];                          \
    mr_rope_desc *rope = &arrays.rope;                                 \
    mr_model *model = NULL;                                            \
    (void)layer, (void)rope;                                           \
    of member = (value);                                               \
    FAILS(code, text, api->model_create(device, &desc, &model));       \
    CHECK(model == NULL);                                              \
  } while (0)

static void test_descriptions(mr_device *device) {
  const double zeros[32] = {0};
#define REFUSE(of, member, value, text) REFUSED(of, member, value, MR_INVALID_ARGUMENT, text)
  REFUSE(desc., layer_count, 0, "layers is 0");
  REFUSE(desc., layer_count, 1 << 20, "layers is 1048576");
  REFUSE(desc., layers, NULL, "array is null");
  REFUSE(desc., layer_stride, 4, "stride");
  REFUSE(desc., hidden, -3, "hidden is -3");
  REFUSE(desc., vocab, 0, "vocab is 0");
  REFUSE(desc., context, 0, "context is 0");
  REFUSE(desc., norm_eps, INFINITY, "norm_eps is inf");
  REFUSE(desc., logit_cap, -1, "logit_cap is -1");
  REFUSE(desc., tied_head, -1, "tied_head is -1");
  REFUSE(desc., layer_input_width, -1, "layer_input_width is -1");
  REFUSE(desc., rope_count, 17, "ropes is 17");
  REFUSE(layer->mixer., kind, 9, "layer 1 mixer kind is 9");
  REFUSE(layer->mixer., heads, 0, "layer 1 heads is 0");
  REFUSE(layer->mixer., kv_heads, 3, "layer 1 kv_heads is 3");
  REFUSE(layer->mixer., kv_heads, 8, "layer 1 kv_heads is 8");
  REFUSE(layer->mixer., key_dim, 1 << 20, "layer 1 key_dim is 1048576");
  REFUSE(layer->mixer., rope, 1, "layer 1 rope is 1");
  REFUSE(layer->mixer., window, -1, "layer 1 window is -1");
  REFUSE(layer->mixer., scale, -1, "layer 1 scale is -1");
  REFUSE(layer->mixer., score_cap, NAN, "layer 1 score_cap is");
  REFUSE(layer->mixer., temperature_scale, -1, "layer 1 temperature_scale is -1");
  REFUSE(layer->mixer., temperature_scale, 1, "layer 1 has temperature_scale 1 and temperature_length 0: want both");
  REFUSE(layer->mixer., temperature_length, 1 << 30, "layer 1 temperature_length is 1073741824");
  REFUSE(layer->mixer., temperature_length, 8, "layer 1 has temperature_scale 0 and temperature_length 8: want both");
  REFUSE(layer->mixer., kv_layer, 2, "layer 1 kv_layer is 2");
  REFUSE(layer->mixer., flags, MR_MIX_QK_NORM | MR_MIX_QK_ROW_NORM, "by head and by row");
  REFUSE(layer->mlp., width, INT32_MAX, "layer 1 ffn is 2147483647");
  REFUSE(layer->mlp., activation, 3, "layer 1 activation is 3");
  REFUSE(layer->mixer., kind, MR_MIX_DELTA, "layer 1 taps is 0: want 2 to 64");
  REFUSE(layer->mixer., kind, MR_MIX_CONV, "layer 1 taps is 0: want 2 to 64");
  REFUSE(layer->mixer., conv, 3, "layer 1 is attention, and has a convolution or tiled heads");
  REFUSE(layer->mixer., flags, MR_MIX_TILED_HEADS, "layer 1 is attention, and has a convolution or tiled heads");
  REFUSE(layer->mixer., flags, MR_MIX_OUT_GATE | MR_MIX_QK_ROW_NORM, "layer 1 norms whole rows of Q, which has gates in it");
  REFUSE(layer->mixer., kind, MR_MIX_LATENT, "layer 1 kv_heads is 2: want 1 to 1");
  REFUSE(layer->mixer., latent, 8, "layer 1 is attention, and has a latent");
  REFUSE(layer->mixer., query_latent, 8, "layer 1 is attention, and has a latent");
  REFUSE(latent_of(layer)->, latent, 0, "layer 1 latent is 0");
  REFUSE(latent_of(layer)->, latent, 1 << 20, "layer 1 latent is 1048576");
  REFUSE(latent_of(layer)->, query_latent, -1, "layer 1 query_latent is -1");
  REFUSE(latent_of(layer)->, heads, 0, "layer 1 heads is 0");
  REFUSE(latent_of(layer)->, value_dim, 0, "layer 1 value_dim is 0");
  REFUSE(latent_of(layer)->, rope, -1, "layer 1 rope is -1: want 0 to 0");
  REFUSE(latent_of(layer)->, key_dim, 64, "layer 1 rotates 64 dims of heads of 64: want fewer");
  REFUSE(latent_of(layer)->, scale, NAN, "layer 1 scale is");
  REFUSE(latent_of(layer)->, window, 4, "layer 1 is attention over a latent, and sets what only other mixers have");
  REFUSE(latent_of(layer)->, kv_layer, 1, "layer 1 is attention over a latent, and sets what only other mixers have");
  REFUSE(latent_of(layer)->, flags, MR_MIX_QKV_BIAS, "layer 1 is attention over a latent, and sets what only other mixers have");
  REFUSE(layer->mlp., kind, 0, "layer 1 mlp kind is 0");
  REFUSE(layer->mlp., kind, MR_MLP_EXPERTS, "layer 1 experts is 0");
  REFUSE(layer->experts., count, 4, "layer 1 mlp is dense and has experts");
  REFUSE(layer->, output_scale, 2, "layer 1 output_scale is 2");
  REFUSE(layer->, struct_size, 0, "struct_size");
  REFUSE(rope->, dims, 63, "rope 0 dims is 63");
  REFUSE(rope->, dims, 66, "rotates 66 dims");
  REFUSE(rope->, style, 2, "rope 0 style is 2");
  REFUSE(rope->, base, 0, "rope 0 base is 0");
  REFUSE(rope->, base, NAN, "rope 0 base is");
  REFUSE(rope->, scale, -1, "rope 0 scale is -1");
  REFUSE(rope->, divisors, zeros, "rope 0 divisor 0 is 0");
#undef REFUSE
#define UNKNOWN(of, member, value, text) REFUSED(of, member, value, MR_UNIMPLEMENTED, text)
  UNKNOWN(layer->mixer., value_dim, 32, "layer 1 value_dim is 32");
  UNKNOWN(layer->mixer., flags, 1u << 30, "unknown flags");
  UNKNOWN(layer->mlp., flags, 1u << 30, "unknown flags");
  UNKNOWN(layer->mlp., reserved[0], 1, "layer 1 sets a reserved member");
  UNKNOWN(rope->, reserved0, 1, "rope 0 sets a reserved member");
#undef UNKNOWN
}

static void refuse_tensor(mr_device *device, mr_model *model, mr_tensor_desc tensor, uint64_t size, int32_t code, const char *text) {
  mr_buffer *buffer = NULL;
  OK(api->buffer_alloc(device, size, MR_PURPOSE_STAGING, &buffer));
  FAILS(code, text, api->model_bind(model, &tensor, buffer));
  FAILS(MR_FAILED_PRECONDITION, "given back", api->buffer_free(buffer)); /* consumed all the same */
  CHECK(info_of(device).bytes_used[MR_PURPOSE_STAGING] == 0);
}

static void test_binding(mr_device *device) {
  const plain_model desc = tiny_model();
  const mr_tensor_desc norm = tensor_of(MR_ROLE_ATTN_NORM, 0, 0, 256, 0);
  mr_model *model = NULL;
  mr_digest digest;
  mr_tensor_desc tensor;
  uint64_t bytes = 0;
  OK(create(device, &desc, &model));
  refuse_tensor(device, model, tensor_of(MR_ROLE_COUNT, 0, 0, 256, 0), 64, MR_INVALID_ARGUMENT, "role is 62");
  refuse_tensor(device, model, tensor_of(MR_ROLE_ATTN_NORM, 2, 0, 256, 0), 1024, MR_INVALID_ARGUMENT, "layer 2");
  refuse_tensor(device, model, tensor_of(MR_ROLE_OUTPUT_NORM, 0, 0, 256, 0), 1024, MR_INVALID_ARGUMENT, "layer 0");
  refuse_tensor(device, model, tensor_of(MR_ROLE_ATTN_NORM, 0, 0, 255, 0), 1020, MR_INVALID_ARGUMENT, "want (256)");
  refuse_tensor(device, model, tensor_of(MR_ROLE_ATTN_NORM, 0, 1, 256, 0), 512, MR_INVALID_ARGUMENT, "type 1");
  refuse_tensor(device, model, tensor_of(MR_ROLE_Q, 0, 0, 256, 0), 1024, MR_INVALID_ARGUMENT, "1 dims");
  refuse_tensor(device, model, tensor_of(MR_ROLE_Q, 0, 99, 256, 256), 64, MR_INVALID_ARGUMENT, "type 99");
  refuse_tensor(device, model, tensor_of(MR_ROLE_Q, 0, 8, 250, 256), 64, MR_INVALID_ARGUMENT, "whole blocks");
  refuse_tensor(device, model, tensor_of(MR_ROLE_Q, 0, 0, 256, INT64_MAX), 64, MR_INVALID_ARGUMENT, "large");
  refuse_tensor(device, model, tensor_of(MR_ROLE_Q_BIAS, 0, 0, 256, 0), 1024, MR_INVALID_ARGUMENT, "no attn_q_bias");
  refuse_tensor(device, model, norm, 1023, MR_INVALID_ARGUMENT, "1024 bytes");
  FAILS(MR_INVALID_ARGUMENT, "null", api->model_bind(model, &norm, NULL));
  bind_random(device, model, norm, 0, 5);
  refuse_tensor(device, model, norm, 1024, MR_ALREADY_EXISTS, "attn_norm of layer 0");
  FAILS(MR_FAILED_PRECONDITION, "attn_norm of layer 1", api->model_seal(model));
  FAILS(MR_FAILED_PRECONDITION, "token_embedding", api->model_seal(model));
  FAILS(MR_OUT_OF_RANGE, "tensor 1", api->model_digest(model, 1, &digest));
  FAILS(MR_OUT_OF_RANGE, "tensor -1", api->model_digest(model, -1, &digest));
  tensor = tensor_of(MR_ROLE_Q, 0, 5, 256, 256);
  FAILS(MR_INVALID_ARGUMENT, "type 5", api->model_resident_size(device, &tensor, &bytes));
  OK(api->model_destroy(model));
  {
    mr_buffer *buffer = NULL;
    OK(api->buffer_alloc(device, 1024, MR_PURPOSE_STAGING, &buffer));
    FAILS(MR_FAILED_PRECONDITION, "model", api->model_bind(model, &norm, buffer));
    FAILS(MR_FAILED_PRECONDITION, "given back", api->buffer_free(buffer));
  }
  FAILS(MR_FAILED_PRECONDITION, "given back", api->model_destroy(model));
  OK(api->model_destroy(NULL));
}

/* Every format, any bits, rows that do not fill a panel, and tensors above what is hashed at once. */
static void test_digests(mr_device *device) {
  plain_model desc = tiny_model();
  int32_t i;
  for (i = 0; i < format_count * 2; ++i) {
    mr_model *model = NULL;
    desc.vocab = i < format_count ? 33 : 4099;
    desc.hidden = 768;
    OK(create(device, &desc, &model));
    const mr_tensor_desc tensor = tensor_of(MR_ROLE_EMBEDDING, -1, formats[i % format_count].type, 768, desc.vocab);
    bind_random(device, model, tensor, 0, (uint64_t)i);
    OK(api->model_destroy(model));
  }
}

static void test_seal_and_faults(mr_device *device) {
  plain_model desc = tiny_model();
  mr_model *model = NULL;
  mr_digest before, after;
  desc.tied_head = 1;
  OK(create(device, &desc, &model));
  FAILS(MR_FAILED_PRECONDITION, "1 models", api->device_close(device));
  bind_all(device, model, &desc, 1);
  OK(api->model_seal(model));
  FAILS(MR_FAILED_PRECONDITION, "sealed", api->model_seal(model));
  refuse_tensor(device, model, tensor_of(MR_ROLE_ATTN_NORM, 0, 0, 256, 0), 1024, MR_FAILED_PRECONDITION, "sealed");

  OK(api->model_digest(model, 3, &before));
  OK(api->model_fault(model, MR_FAULT_FLIP_BIT, 3, 1234));
  OK(api->model_digest(model, 3, &after));
  CHECK(memcmp(&before, &after, sizeof before) != 0);
  OK(api->model_fault(model, MR_FAULT_FLIP_BIT, 3, 1234));
  OK(api->model_digest(model, 3, &after));
  CHECK(memcmp(&before, &after, sizeof before) == 0);
  FAILS(MR_OUT_OF_RANGE, "bit", api->model_fault(model, MR_FAULT_FLIP_BIT, 1, UINT64_MAX));
  FAILS(MR_OUT_OF_RANGE, "tensor", api->model_fault(model, MR_FAULT_FLIP_BIT, 1000, 0));
  FAILS(MR_INVALID_ARGUMENT, "fault", api->model_fault(model, MR_FAULT_HANG_STEP, 0, 0));
  OK(api->model_destroy(model));
}

void test_models(const char *path) {
  mr_device *device = open_device(path, 2);
  test_descriptions(device);
  test_binding(device);
  test_digests(device);
  test_seal_and_faults(device);
  CHECK(info_of(device).bytes_free == info_of(device).bytes_total);
  OK(api->device_close(device));
}
