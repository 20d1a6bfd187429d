'use strict';
// Streams from Millrace that go on elsewhere when a server is lost: a helper over gRPC's client.

const fs = require('node:fs');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

// Names of fields in camel case, numbers of 64 bits as text: a double has no room for a seed.
const contract = loader.loadSync('millrace/v1/inference.proto', {
  includeDirs: [path.join(__dirname, '../../proto')], longs: String, defaults: true, oneofs: true,
});
const { InferenceService } = grpc.loadPackageDefinition(contract).millrace.v1;

/** A client of a scheduler or worker: plaintext, or over TLS by files of PEM. Who made it closes it. */
function connect(target, { ca, cert, key } = {}) {
  const [rootsFile, keyFile, certFile] = [ca, key, cert].map((file) => (file ? fs.readFileSync(file) : null));
  const credentials = ca ? grpc.credentials.createSsl(rootsFile, keyFile, certFile) : grpc.credentials.createInsecure();
  // What a server may send; gRPC's own default is 4 MiB.
  return new InferenceService(target, credentials, { 'grpc.max_receive_message_length': 64 << 20 });
}

/**
 * Whether a call failed since its server is gone. A proxy that has passed a part of an answer on resets the stream then, which is
 * INTERNAL in gRPC, without the details that faults of servers have.
 */
function lostServer(error) {
  const detailed = error.metadata?.get('grpc-status-details-bin').length > 0;
  return error.code === grpc.status.UNAVAILABLE || (error.code === grpc.status.INTERNAL && !detailed);
}

/**
 * Yields the events of a generation of one continuation. Where a server is lost, the next of clients goes on behind the last token
 * with those that would have come: nothing is told twice. Leaving the loop cancels the call. deadline is a Date; undefined is none.
 */
async function* stream(clients, request, { deadline } = {}) {
  const ids = [];
  let [started, textBytes, lost] = [undefined, 0, 0];
  for (;;) {
    const call = clients[lost % clients.length].generate(request, { deadline });
    call.on('error', () => {}); // of a call that was cancelled: nobody iterates over it any more
    try {
      for await (const event of call) {
        if (event.event === 'started') {
          if (started && event.started.exact === undefined) {
            continue; // it says what the first one said
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
        // A server with another context makes the stream neither longer nor shorter.
        ...(started.maxTokens === undefined ? {} : { contextLength: started.promptTokens + started.maxTokens }),
        resume: [{ outputIndex: 0, tokenIds: ids, textBytes }],
      };
    }
  }
}

module.exports = { connect, stream };
