package modeltest

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/repotest"
)

// Golden is a text with the float64 results of the F16 stories model.
type Golden struct {
	Text     string  `json:"text"`
	TokenIDs []int32 `json:"token_ids"` // (T), begins with the begin-of-text token
	// (T-1), natural logarithm of the probability of TokenIDs[i+1] at i
	NextLogprob []float64 `json:"next_logprob"`
	// (T), token id and logprob of the best tokens, best first
	Top8 [][8][2]float64 `json:"top8"`
}

// ReadGolden returns the golden texts by name.
func ReadGolden(t testing.TB) map[string]Golden {
	t.Helper()
	raw, err := os.ReadFile(repotest.Path("testdata/golden/stories-5m-f16.json"))
	require.NoError(t, err)
	var golden map[string]Golden
	require.NoError(t, json.Unmarshal(raw, &golden))
	return golden
}
