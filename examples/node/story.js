'use strict';
// Streams a story. Ctrl-C stops it, on the device too; if a server is lost, the next of --target continues.

const { parseArgs } = require('node:util');
const { status } = require('@grpc/grpc-js');
const { connect, stream } = require('./failover');

const options = {
  target: { type: 'string', default: 'localhost:7070' }, // servers, separated by commas: host:port
  model: { type: 'string', default: 'stories' },
  'max-tokens': { type: 'string', default: '200' },
  temperature: { type: 'string', default: '0.7' },
  seed: { type: 'string' },
  timeout: { type: 'string' }, // seconds for the whole call
  'stop-after': { type: 'string' }, // tokens after which to cancel
  'tls-ca': { type: 'string' }, 'tls-cert': { type: 'string' }, 'tls-key': { type: 'string' }, // files of PEM
};

async function main() {
  const { values: flags, positionals: [prompt = 'Once upon a time'] } = parseArgs({ options, allowPositionals: true });
  const request = {
    model: flags.model,
    prompt,
    sampling: { temperature: Number(flags.temperature), topP: 0.9, seed: flags.seed },
    stopping: { maxTokens: Number(flags['max-tokens']) },
  };
  const deadline = flags.timeout && new Date(Date.now() + 1000 * Number(flags.timeout));
  const files = { ca: flags['tls-ca'], cert: flags['tls-cert'], key: flags['tls-key'] };
  const clients = flags.target.split(',').map((target) => connect(target, files));
  let tokens = 0;
  try {
    for await (const event of stream(clients, request, { deadline })) {
      if (event.event === 'tokens') {
        process.stdout.write(event.tokens.text);
        tokens += event.tokens.tokenIds.length;
        if (flags['stop-after'] && tokens >= Number(flags['stop-after'])) {
          break;
        }
      } else if (event.event === 'finished') {
        console.error(`\n${event.finished.usage.completionTokens} tokens`);
      }
    }
  } finally {
    clients.forEach((client) => client.close());
  }
}

main().catch((error) => {
  console.error(`\n${status[error.code] ?? error.name}: ${error.details ?? error.message}`);
  process.exitCode = 1;
});
