'use strict';
// Streams from Millrace that fail over to another server when theirs is lost: a helper for gRPC's client.

const fs = require('node:fs');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

// Field names in camel case; 64-bit numbers as text, because a double cannot hold a seed.
const contract = loader.loadSync('millrace/v1/inference.proto', {
  includeDirs: [path.join(__dirname, '../../proto')], longs: String, defaults: true, oneofs: true,
});
const { InferenceService } = grpc.loadPackageDefinition(contract).millrace.v1;

/** A client of a scheduler or worker: plaintext, or over TLS by files of PEM. The caller closes it. */
function connect(target, { ca, cert, key } = {}) {
  const [rootsFile, keyFile, certFile] = [ca, key, cert].map((file) => (file ? fs.readFileSync(file) : null));
  const credentials = ca ? grpc.credentials.createSsl(rootsFile, keyFile, certFile) : grpc.credentials.createInsecure();
  // The largest message of a server; gRPC's default is 4 MiB.
  return new InferenceService(target, credentials, { 'grpc.max_receive_message_length': 64 << 20 });
}

/**
 * Whether a call failed because its server is lost. A proxy that has forwarded a part of the answer resets the stream then, which is
 * INTERNAL in gRPC, without the details that errors of servers have.
 */
function lostServer(error) {
  const detailed = error.metadata?.get('grpc-status-details-bin').length > 0;
  return error.code === grpc.status.UNAVAILABLE || (error.code === grpc.status.INTERNAL && !detailed);
}

/**
 * Yields the events of a generation of one continuation. If a server is lost, the next of clients resumes the stream after the last
 * token, and no event comes twice. Leaving the loop cancels the call. deadline is a Date; undefined: none.
 */
async function* stream(clients, request, { deadline } = {}) {
  const ids = [];
  let [started, textBytes, lost] = [undefined, 0, 0];
  for (;;) {
    const call = clients[lost % clients.length].generate(request, { deadline });
    call.on('error', () => {}); // of a cancelled call, which is not read any more
    try {
      for await (const event of call) {
        if (event.event === 'started') {
          if (started && event.started.exact === undefined) {
            continue; // it repeats the first one
          }
          started ??= event.started;
        } else if (event.event === 'tokens') {
          ids.push(...event.tokens.tokenIds);
          textBytes += Buffer.byteLength(event.tokens.text);
        }
        yield event;
      }
      return;
    } catch (error) {
      if (!lostServer(error) || ++lost > 2 * clients.length) {
        throw error;
      }
    } finally {
      call.cancel();
    }
    if (started) {
      request = {
        ...request,
        sampling: { ...request.sampling, seed: started.seed },
        expectModelDigest: started.modelDigest,
        expectPromptDigest: started.promptDigest,
        // A server with another context must not change the length of the stream.
        ...(started.maxTokens === undefined ? {} : { contextLength: started.promptTokens + started.maxTokens }),
        resume: [{ outputIndex: 0, tokenIds: ids, textBytes }],
      };
    }
  }
}

module.exports = { connect, stream };
