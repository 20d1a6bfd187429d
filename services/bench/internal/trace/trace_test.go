package trace_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/trace"
)

const header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"

func request(at time.Duration, prompt, output int) trace.Request {
	return trace.Request{At: at, Prompt: prompt, Output: output}
}

func TestTracesAreReadAsOffsetsFromTheirFirstRequest(t *testing.T) {
	for name, tc := range map[string]struct {
		file  string
		limit int
		want  []trace.Request
	}{
		"azure": {header + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n", 0,
			[]trace.Request{request(0, 374, 44), request(4314579*time.Microsecond, 396, 109)}},
		"azure with zones, other columns and line ends": {"GeneratedTokens,x,TIMESTAMP,ContextTokens\r\n5,a,2024-05-10 23:59:59.500+00:00,7\r\n6,b,2024-05-11 00:00:01+00:00,8\r\n", 0,
			[]trace.Request{request(0, 7, 5), request(1500*time.Millisecond, 8, 6)}},
		"mooncake": {`{"timestamp": 3000, "input_length": 513, "output_length": 6, "hash_ids": [0, 7]}` + "\n" + `{"timestamp": 3027.5, "input_length": 1, "output_length": 2}`, 0,
			[]trace.Request{{At: 0, Prompt: 513, Output: 6, Blocks: []uint64{0, 7}}, request(27500*time.Microsecond, 1, 2)}},
		"a limit":            {header + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:47,2,2\nnot read,at,all\n", 2, []trace.Request{request(0, 1, 1), request(time.Second, 2, 2)}},
		"out of order":       {header + "2023-11-16 18:15:47,2,2\n2023-11-16 18:15:46,1,1\n", 0, []trace.Request{request(0, 1, 1), request(time.Second, 2, 2)}},
		"lengths of nothing": {header + "2023-11-16 18:15:47,0,0\n", 0, []trace.Request{request(0, 1, 1)}},
		"empty lines":        {header + "\n2023-11-16 18:15:47,3,4\n\n", 0, []trace.Request{request(0, 3, 4)}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := trace.Read(strings.NewReader(tc.file), tc.limit)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestWhatIsNoTraceIsRefusedWithItsLine(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"nothing":                  {"", "empty"},
		"only a header":            {header, "no requests"},
		"another table":            {"a,b,c\n1,2,3\n", "line 1: no column TIMESTAMP"},
		"too few fields":           {header + "2023-11-16 18:15:46,1\n", "line 2: 2 fields"},
		"no time":                  {header + "yesterday,1,2\n", "line 2: TIMESTAMP"},
		"no number":                {header + "2023-11-16 18:15:46,many,2\n", "line 2: ContextTokens"},
		"a negative length":        {header + "2023-11-16 18:15:46,1,-2\n", "line 2: 1 prompt and -2"},
		"an absurd length":         {header + "2023-11-16 18:15:46,99999999,2\n", "line 2"},
		"JSON cut off":             {`{"timestamp": 0,`, "line 1"},
		"JSON without times":       {`{"input_length": 3, "output_length": 4}`, "line 1: timestamp"},
		"blocks of another length": {`{"timestamp": 0, "input_length": 513, "output_length": 4, "hash_ids": [1]}`, "line 1: 1 hash_ids for input_length 513: want 2"},
		"a line without end":       {"{" + strings.Repeat("x", 2<<20), "token too long"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := trace.Read(strings.NewReader(tc.file), 0)
			require.ErrorIs(t, err, trace.ErrFormat)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestASpeedFactorShortensTheTimesAlone(t *testing.T) {
	slow := []trace.Request{request(0, 1, 2), request(4*time.Second, 3, 4)}
	require.Equal(t, []trace.Request{request(0, 1, 2), request(time.Second, 3, 4)}, trace.Faster(slow, 4))
	require.Equal(t, 4*time.Second, slow[1].At, "the trace itself stays")
}

func TestThePublishedTracesAreRead(t *testing.T) {
	dir := os.Getenv("MILLRACE_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "..", "shared")
	}
	for _, name := range []string{"AzureLLMInferenceTrace_conv.csv", "mooncake_synthetic_trace.jsonl"} {
		f, err := os.Open(filepath.Join(dir, "traces", name))
		if err != nil {
			t.Skipf("the published traces are not here (%v): set MILLRACE_SHARED to a folder whose traces/ has %s", err, name)
		}
		requests, err := trace.Read(f, 0)
		require.NoError(t, f.Close())
		require.NoError(t, err)
		require.Greater(t, len(requests), 1000)
		require.Zero(t, requests[0].At)
		require.Greater(t, requests[len(requests)-1].At, time.Minute)
	}
}
