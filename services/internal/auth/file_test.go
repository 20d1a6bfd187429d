package auth_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/auth"
)

// Hashes of test tokens.
var (
	one = auth.HashOf("one").String()
	two = auth.HashOf("two").String()
)

func TestParseReadsEveryField(t *testing.T) {
	keys, err := auth.Parse(`# who may call
- id: web
  hash: ` + one + `
  rights: [generate, health]
- {id: "batch.7", hash: "` + two + `", tenant: "a team", rights: [load], prefix_cache: shared, expires: 2027-01-31T12:00:00+01:00,
   limits: {requests_per_minute: 600, tokens_per_minute: 1000, streams: 4, priority: -3}}
- id: scheduler
  hash:
  - sha256:` + strings.Repeat("aB", 32) + `
  - sha256:` + strings.Repeat("03", 32) + `
  tenant: "*"
  prefix_cache: tenant
  rights:
  - admin
`)
	require.NoError(t, err)
	all := keys.All()
	require.Len(t, all, 3)
	zero, low := int32(0), int32(-3)
	require.Equal(t, &auth.Key{
		ID: "web", Hashes: []auth.Hash{auth.HashOf("one")}, Tenant: "web", Rights: []auth.Right{auth.Generate, auth.Health}, Limits: auth.Limits{Priority: &zero},
	}, all[0], "its tenant is its id, and no priority is above 0")
	require.True(t, time.Date(2027, 1, 31, 11, 0, 0, 0, time.UTC).Equal(all[1].Expires))
	all[1].Expires = time.Time{}
	require.Equal(t, &auth.Key{
		ID: "batch.7", Hashes: []auth.Hash{auth.HashOf("two")}, Tenant: "a team", Rights: []auth.Right{auth.Load}, SharesPrefixes: true,
		Limits: auth.Limits{RequestsPerMinute: 600, TokensPerMinute: 1000, Streams: 4, Priority: &low},
	}, all[1])
	require.Equal(t, auth.AnyTenant, all[2].Tenant)
	require.False(t, all[2].SharesPrefixes)
	require.Len(t, all[2].Hashes, 2)
	require.Nil(t, all[2].Limits.Priority, "it carries the priorities of others")

	keys, err = auth.Parse("[]\n")
	require.NoError(t, err)
	require.Empty(t, keys.All(), "no keys: every call is refused")
	keys, err = auth.Parse(`[{"id": "json", "hash": "` + one + `", "rights": ["vectors"]}]`)
	require.NoError(t, err)
	require.Equal(t, "json", keys.All()[0].ID)
}

func TestParseNamesLineAndFieldOfMistakes(t *testing.T) {
	good := "{id: a, hash: '" + one + "', rights: [generate]"
	for name, tc := range map[string]struct{ file, want string }{
		"an empty file":         {"# nothing\n", "it is empty: want a list of keys"},
		"no YAML":               {"- {id: a\n", "not YAML: line"},
		"a map":                 {"keys:\n- " + good + "}\n", "line 1: want a list of keys"},
		"two documents":         {"- " + good + "}\n---\n- " + good + "}\n", "line 2: want one YAML document"},
		"an entry of one value": {"- web\n", "line 1: entry: want a map of fields"},
		"no id":                 {"- {hash: '" + one + "', rights: [generate]}\n", "line 1: id: is missing"},
		"no hash":               {"\n- {id: a, rights: [generate]}\n", "line 2: hash: is missing"},
		"no rights":             {"- {id: a, hash: '" + one + "'}\n", "line 1: rights: is missing"},
		"an unknown field":      {"- " + good + ", right: [load]}\n", `line 1: "right": there is no such field`},
		"an unknown limit":      {"- " + good + ",\n   limits: {stream: 1}}\n", `line 2: limits."stream": there is no such field`},
		"a field twice":         {"- " + good + ", id: b}\n", "line 1: id: is there twice"},
		"a bad id":              {"- {id: a b, hash: '" + one + "', rights: [generate]}\n", "line 1: id: want 1 to 64 letters"},
		"an id twice":           {"- " + good + "}\n- {id: a, hash: '" + two + "', rights: [load]}\n", "line 2: id: a is the key of line 1"},
		"a hash twice":          {"- " + good + "}\n- {id: b, hash: '" + one + "', rights: [load]}\n", "line 2: hash: it is that of line 1"},
		"a token for a hash":    {"- {id: a, hash: millrace_secret, rights: [generate]}\n", "line 1: hash: want sha256:"},
		"a short hash":          {"- {id: a, hash: 'sha256:12', rights: [generate]}\n", "line 1: hash: want sha256:"},
		"a hash twice in a key": {"- {id: a, hash: ['" + one + "', '" + one + "'], rights: [generate]}\n", "line 1: hash: it is that of line 1"},
		"no hashes":             {"- {id: a, hash: [], rights: [generate]}\n", "line 1: hash: want one at least"},
		"a list with no hash":   {"- {id: a, hash: ['" + one + "', x], rights: [generate]}\n", "line 1: hash: want sha256:"},
		"a hash of no hex":      {"- {id: a, hash: 'sha256:" + strings.Repeat("xy", 32) + "', rights: [generate]}\n", "line 1: hash: want sha256:"},
		"an empty tenant":       {"- " + good + ", tenant: ''}\n", "line 1: tenant: want 1 to 128 printable ASCII"},
		"a long tenant":         {"- " + good + ", tenant: " + strings.Repeat("a", 129) + "}\n", "line 1: tenant: want 1 to 128"},
		"a foreign tenant":      {"- " + good + ", tenant: ж}\n", "line 1: tenant: want 1 to 128"},
		"a foreign sharing":     {"- " + good + ", prefix_cache: true}\n", "line 1: prefix_cache: want tenant"},
		"no value":              {"- " + good + ", tenant: }\n", "line 1: tenant: want a single value"},
		"an unknown right":      {"- {id: a, hash: '" + one + "', rights: [generate,\n  root]}\n", `line 2: rights: "root" is none`},
		"a right twice":         {"- {id: a, hash: '" + one + "', rights: [load, load]}\n", "line 1: rights: load is there twice"},
		"rights of one value":   {"- {id: a, hash: '" + one + "', rights: load}\n", "line 1: rights: want a list"},
		"an empty list":         {"- {id: a, hash: '" + one + "', rights: []}\n", "line 1: rights: want a list"},
		"a date alone":          {"- " + good + ", expires: 2027-01-31}\n", "line 1: expires: want a time such as"},
		"a limit of none":       {"- " + good + ", limits: {streams: 0}}\n", "line 1: limits.streams: want a number of 1 to"},
		"a limit of words":      {"- " + good + ", limits: {requests_per_minute: many}}\n", "line 1: limits.requests_per_minute: want a number"},
		"a fraction":            {"- " + good + ", limits: {tokens_per_minute: 1.5}}\n", "line 1: limits.tokens_per_minute: want a number"},
		"a priority of 33 bits": {"- " + good + ", limits: {priority: 4294967296}}\n", "line 1: limits.priority: want a number of 32 bits"},
		"limits of one value":   {"- " + good + ", limits: 7}\n", "line 1: entry.limits: want a map of fields"},
		"an alias":              {"- &a " + good + "}\n- *a\n", "line 2: entry: want a map of fields"},
		"a merge":               {"- " + good + ", <<: {id: b}}\n", `line 1: "<<": there is no such field`},
	} {
		t.Run(name, func(t *testing.T) {
			keys, err := auth.Parse(tc.file)
			require.ErrorContains(t, err, tc.want)
			require.Nil(t, keys)
			require.NotContains(t, err.Error(), "secret", "what may be a token is not told")
			require.NotContains(t, err.Error(), one[7:])
		})
	}
}

func TestParseListsMistakesUpToABound(t *testing.T) {
	_, err := auth.Parse("- {id: 'a b', hash: x, rights: []}\n- 7\n")
	require.ErrorContains(t, err, "line 1: id")
	require.ErrorContains(t, err, "line 1: hash")
	require.ErrorContains(t, err, "line 1: rights")
	require.ErrorContains(t, err, "line 2: entry")
	_, err = auth.Parse(strings.Repeat("- 7\n", 1000))
	require.ErrorContains(t, err, "and 990 more")
	require.Equal(t, 10, strings.Count(err.Error(), "\n"))
}

func TestLineRoundTrip(t *testing.T) {
	zero, high := int32(0), int32(7)
	for i, k := range []auth.Key{
		{ID: "web", Tenant: "web", Rights: []auth.Right{auth.Generate}, Limits: auth.Limits{Priority: &zero}},
		{ID: "b", Tenant: `a "team" \ of: {many}, # ` + "'", Rights: auth.Rights(), Expires: time.Unix(1800000000, 0).UTC(),
			Limits: auth.Limits{RequestsPerMinute: 1, TokensPerMinute: 2, Streams: 3, Priority: &high}},
		{ID: "c", Tenant: auth.AnyTenant, Rights: []auth.Right{auth.Admin}},
	} {
		k.Hashes = []auth.Hash{auth.HashOf(auth.NewToken()), auth.HashOf(auth.NewToken())}[:1+i%2]
		line, err := k.Line()
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(line, "\n"))
		keys, err := auth.Parse("# before\n" + line)
		require.NoError(t, err, line)
		require.Equal(t, &k, keys.All()[0], line)
	}
	_, err := (&auth.Key{ID: "a b", Rights: []auth.Right{"root"}}).Line()
	require.ErrorContains(t, err, "id")
	require.ErrorContains(t, err, "rights")
}

func FuzzParse(f *testing.F) {
	f.Add("- {id: a, hash: '" + one + "', rights: [generate]}\n")
	f.Add("[{\"id\": \"json\", \"limits\": {\"streams\": 1}}]")
	f.Add("- &a {id: *a}\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		keys, err := auth.Parse(text)
		require.Equal(t, err == nil, keys != nil)
		if err != nil {
			return
		}
		for _, k := range keys.All() {
			line, err := k.Line()
			require.NoError(t, err)
			again, err := auth.Parse(line)
			require.NoError(t, err)
			require.Equal(t, k.ID, again.All()[0].ID)
			require.Equal(t, k.Hashes, again.All()[0].Hashes)
		}
	})
}
