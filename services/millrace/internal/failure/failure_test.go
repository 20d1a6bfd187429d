package failure_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/millrace/internal/failure"
)

func TestEveryCodeHasItsExitCodeBareAndWrapped(t *testing.T) {
	want := map[codes.Code]int{
		codes.OK: 0, codes.Canceled: 1, codes.Unknown: 1, codes.InvalidArgument: 4, codes.DeadlineExceeded: 6, codes.NotFound: 5,
		codes.AlreadyExists: 5, codes.PermissionDenied: 8, codes.ResourceExhausted: 7, codes.FailedPrecondition: 5,
		codes.Aborted: 1, codes.OutOfRange: 4, codes.Unimplemented: 4, codes.Internal: 1, codes.Unavailable: 3,
		codes.DataLoss: 1, codes.Unauthenticated: 8,
	}
	require.Len(t, want, 17)
	for code, exit := range want {
		t.Run(code.String(), func(t *testing.T) {
			err := status.Error(code, "x")
			require.Equal(t, exit, failure.Code(err))
			if err != nil {
				require.Equal(t, exit, failure.Code(fmt.Errorf("around: %w", err)))
			}
			require.Regexp(t, "^[A-Z_]+$", failure.CodeName(code))
		})
	}
}

func TestTheClientsOwnErrorsHaveExitCodes(t *testing.T) {
	for err, want := range map[error]int{
		failure.ErrUsage: 2, failure.ErrState: 5, failure.ErrInterrupted: 130, failure.ErrTerminated: 143,
		context.DeadlineExceeded: 6, errors.New("else"): 1,
	} {
		require.Equal(t, want, failure.Code(fmt.Errorf("around: %w", err)))
	}
}

func worker(code codes.Code, reason, message string) rpc.Error {
	return rpc.Error{Code: code, Domain: rpc.WorkerDomain, Reason: reason, Message: message}
}

func TestErrorsSayWhatHappenedAndWhatToDo(t *testing.T) {
	there := failure.Request{Target: "there:1", TargetGiven: true, Model: "m"}
	here := failure.Request{Target: "localhost:7070", Model: "m"}
	violations := worker(codes.InvalidArgument, "INVALID_ARGUMENT", "invalid request: a: is 1; b: is 2")
	violations.Violations = []rpc.Violation{{Field: "a", Description: "is 1"}, {Field: "b", Description: "is 2"}}
	noFit := worker(codes.ResourceExhausted, "MODEL_DOES_NOT_FIT", "does not fit")
	noFit.Metadata = map[string]string{"needed_bytes": "2097152", "free_bytes": "10"}
	full := worker(codes.ResourceExhausted, "WORKER_FULL", "full")
	full.RetryAfter = 250 * time.Millisecond
	used := here
	used.Usage = &pb.Usage{PromptTokens: 3, CompletionTokens: 7}
	for name, tc := range map[string]struct {
		err     error
		request failure.Request
		want    string
	}{
		"a model not loaded names the command": {worker(codes.FailedPrecondition, "MODEL_NOT_LOADED", "not loaded").Err(), there,
			"not loaded\n  reason: MODEL_NOT_LOADED (FAILED_PRECONDITION, from worker.millrace.dev)\n  try: millrace load m --target there:1"},
		"advice leaves out the usual target": {worker(codes.FailedPrecondition, "MODEL_NOT_LOADED", "not loaded").Err(), here,
			"not loaded\n  reason: MODEL_NOT_LOADED (FAILED_PRECONDITION, from worker.millrace.dev)\n  try: millrace load m"},
		"unloading what is not loaded shows what is": {worker(codes.NotFound, "MODEL_NOT_LOADED", "not loaded").Err(), here,
			"not loaded\n  reason: MODEL_NOT_LOADED (NOT_FOUND, from worker.millrace.dev)\n  try: millrace models shows the loaded models"},
		"every violation is listed once": {violations.Err(), here,
			"invalid request\n  a is 1\n  b is 2\n  reason: INVALID_ARGUMENT (from worker.millrace.dev)"},
		"numbers come with sizes": {noFit.Err(), here,
			"does not fit\n  reason: MODEL_DOES_NOT_FIT (RESOURCE_EXHAUSTED, from worker.millrace.dev)\n  free_bytes: 10\n" +
				"  needed_bytes: 2097152 (2.00 MiB)\n  try: unload another model, or load with fewer --kv-tokens or a smaller --context"},
		"a time to wait is told": {full.Err(), here,
			"full\n  reason: WORKER_FULL (RESOURCE_EXHAUSTED, from worker.millrace.dev)\n  try: again in 250ms"},
		"tokens so far are told": {worker(codes.DeadlineExceeded, "DEADLINE", "late").Err(), used,
			"late\n  reason: DEADLINE (DEADLINE_EXCEEDED, from worker.millrace.dev)\n  so far: 3 prompt tokens, 7 generated\n  try: a longer --timeout"},
		"an unreachable server is named": {status.Error(codes.Unavailable, `connection error: desc = "transport: some words: dial tcp: refused"`), there,
			"cannot reach there:1: dial tcp: refused\n  reason: UNAVAILABLE\n  try: start a server at there:1, or name another with --target"},
		"a server that wants a certificate": {status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: remote error: tls: certificate required"`), there,
			"cannot reach there:1: error reading server preface: remote error: tls: certificate required\n  reason: UNAVAILABLE\n" +
				"  try: --tls-cert and --tls-key: this server requires a client certificate"},
		"a server of another authority": {status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"`), there,
			"cannot reach there:1: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority\n" +
				"  reason: UNAVAILABLE\n  try: --tls-ca with the authority of the server's certificate"},
		"a server with TLS, asked in plaintext": {status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: EOF"`), there,
			"cannot reach there:1: error reading server preface: EOF\n  reason: UNAVAILABLE\n  try: --tls-ca, if that server has TLS"},
		"no server at the usual target": {fmt.Errorf("check: %w", status.Error(codes.Unavailable, "gone")), here,
			"gone\n  reason: UNAVAILABLE\n  try: start a server (make up), or name one with --target or MILLRACE_TARGET"},
		"a proxy that reaches no server": {status.Error(codes.Unavailable, "unexpected HTTP status code received from server: 502 (Bad Gateway)"), there,
			"unexpected HTTP status code received from server: 502 (Bad Gateway)\n  reason: UNAVAILABLE\n" +
				"  try: the log of the proxy at there:1, which reaches no server; or name another with --target"},
		"a proxy that broke the stream": {status.Error(codes.Internal, "stream terminated by RST_STREAM with error code: INTERNAL_ERROR"), there,
			"stream terminated by RST_STREAM with error code: INTERNAL_ERROR\n  reason: INTERNAL\n" +
				"  try: send it again; if it fails again, the log of the server at there:1 has the reason"},
		"another server's address": {status.Error(codes.Unimplemented, "unknown service millrace.v1.InferenceService"), there,
			"unknown service millrace.v1.InferenceService\n  reason: UNIMPLEMENTED\n" +
				"  try: the address of a scheduler or worker of this client's version with --target; there:1 does not serve this call"},
		"a status without a message names its code": {status.Error(codes.DataLoss, ""), here,
			"the server answered DATA_LOSS\n  reason: DATA_LOSS"},
		"usage points to the help":        {fmt.Errorf("%w: no flag", failure.ErrUsage), failure.Request{Help: "millrace load"}, "no flag\n  try: millrace load --help"},
		"a message that says all":         {fmt.Errorf("%w: want -k", failure.ErrUsage), here, "want -k"},
		"a state speaks for itself":       {fmt.Errorf("%w: no\ntry: that", failure.ErrState), here, "no\n  try: that"},
		"other errors are told as is":     {errors.New("x"), here, "x"},
		"control characters are disarmed": {status.Error(codes.Unknown, "a\x1b[2J\nb"), here, "a [2J b\n  reason: UNKNOWN"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, failure.Explain(tc.err, tc.request)) })
	}
}
