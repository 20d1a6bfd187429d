package auth

import (
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxWrong bounds the mistakes that an error lists.
const maxWrong = 10

// maxTenant is the contract's bound of a fairness_id.
const maxTenant = 128

var (
	keyID = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$`)
	// errID reports a text that is not a key id.
	errID = errors.New(`want 1 to 64 letters, digits and "._-", the first and the last a letter or digit`)
)

// Parse parses a file of keys: a YAML list (JSON is YAML) of maps. Its error has a line for each
// mistake, with the line and the field of the file, and contains no hash.
func Parse(text string) (keys *Keys, err error) {
	defer func() { // a panic of the YAML library must not end a server
		if p := recover(); p != nil {
			keys, err = nil, fmt.Errorf("not YAML: %v", p)
		}
	}()
	var document, second yaml.Node
	decoder := yaml.NewDecoder(strings.NewReader(text))
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("it is empty: want a list of keys, or [] to refuse every call")
	case err != nil:
		return nil, fmt.Errorf("not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("line %d: want one YAML document", max(second.Line, 1))
	}
	list := document.Content[0]
	if list.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: want a list of keys, each - {id: NAME, hash: sha256:..., rights: [...]}", list.Line)
	}
	r := &reader{}
	all := make([]*Key, 0, len(list.Content))
	ids, hashes := map[string]int{}, map[Hash]int{}
	for _, node := range list.Content {
		key := r.key(node)
		if line, twice := ids[key.ID]; twice && key.ID != "" {
			r.wrong(node, "id", "%s is the key of line %d", key.ID, line)
		}
		for _, h := range key.Hashes {
			if line, twice := hashes[h]; twice {
				r.wrong(node, "hash", "it is that of line %d: each key has tokens of its own", line)
			}
			hashes[h] = node.Line
		}
		ids[key.ID] = node.Line
		all = append(all, key)
	}
	if r.mistakes > maxWrong {
		r.all = append(r.all, fmt.Errorf("and %d more", r.mistakes-maxWrong))
	}
	if err := errors.Join(r.all...); err != nil {
		return nil, err
	}
	return newKeys(all), nil
}

// reader collects the mistakes of a file.
type reader struct {
	all      []error // the first maxWrong
	mistakes int
}

// wrong records a mistake.
func (r *reader) wrong(node *yaml.Node, field, format string, args ...any) {
	if r.mistakes++; r.mistakes > maxWrong {
		return
	}
	r.all = append(r.all, fmt.Errorf("line %d: %s: "+format, append([]any{node.Line, field}, args...)...))
}

// key parses one entry.
func (r *reader) key(node *yaml.Node) *Key {
	k, priority := &Key{}, false
	seen := r.fields(node, "", map[string]func(*yaml.Node){
		"id":   func(n *yaml.Node) { r.text(n, "id", &k.ID, func(s string) (string, error) { return s, checkID(s) }) },
		"hash": func(n *yaml.Node) { k.Hashes = r.hashes(n) },
		"tenant": func(n *yaml.Node) {
			r.text(n, "tenant", &k.Tenant, func(s string) (string, error) { return s, checkTenant(s) })
		},
		"prefix_cache": func(n *yaml.Node) { parsed(r, n, "prefix_cache", &k.SharesPrefixes, parsePrefixCache) },
		"rights":       func(n *yaml.Node) { k.Rights = r.rights(n) },
		"expires":      func(n *yaml.Node) { parsed(r, n, "expires", &k.Expires, parseTime) },
		"limits": func(n *yaml.Node) {
			limits := r.fields(n, "limits.", map[string]func(*yaml.Node){
				"requests_per_minute": func(n *yaml.Node) { parsed(r, n, "limits.requests_per_minute", &k.Limits.RequestsPerMinute, positive) },
				"tokens_per_minute":   func(n *yaml.Node) { parsed(r, n, "limits.tokens_per_minute", &k.Limits.TokensPerMinute, positive) },
				"streams":             func(n *yaml.Node) { parsed(r, n, "limits.streams", &k.Limits.Streams, positive) },
				"priority": func(n *yaml.Node) {
					parsed(r, n, "limits.priority", &k.Limits.Priority, func(s string) (*int32, error) {
						v, err := strconv.ParseInt(s, 10, 32)
						if err != nil {
							return nil, errors.New("want a number of 32 bits")
						}
						highest := int32(v)
						return &highest, nil
					})
				},
			})
			priority = slices.Contains(limits, "priority")
		},
	})
	for _, field := range []string{"id", "hash", "rights"} {
		if node.Kind == yaml.MappingNode && !slices.Contains(seen, field) {
			r.wrong(node, field, "is missing")
		}
	}
	if k.Tenant == "" {
		k.Tenant = k.ID
	}
	// a key that acts for other tenants passes their priorities on
	if !priority && k.Tenant != AnyTenant {
		k.Limits.Priority = new(int32)
	}
	return k
}

// fields parses a map and returns the names of its fields.
func (r *reader) fields(node *yaml.Node, prefix string, known map[string]func(*yaml.Node)) (seen []string) {
	if node.Kind != yaml.MappingNode {
		r.wrong(node, strings.TrimSuffix("entry."+prefix, "."), "want a map of fields")
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		switch parse, ok := known[name.Value]; {
		case !ok:
			r.wrong(name, prefix+printable(name.Value), "there is no such field")
		case slices.Contains(seen, name.Value):
			r.wrong(name, prefix+name.Value, "is there twice")
		default:
			parse(value)
		}
		seen = append(seen, name.Value)
	}
	return seen
}

// hashes parses a hash or a list of hashes.
func (r *reader) hashes(node *yaml.Node) (all []Hash) {
	nodes := []*yaml.Node{node}
	if node.Kind == yaml.SequenceNode {
		if nodes = node.Content; len(nodes) == 0 {
			r.wrong(node, "hash", "want one at least")
		}
	}
	for _, n := range nodes {
		h, before := Hash{}, r.mistakes
		if parsed(r, n, "hash", &h, parseHash); r.mistakes == before {
			all = append(all, h)
		}
	}
	return all
}

// rights parses a list of rights.
func (r *reader) rights(node *yaml.Node) (all []Right) {
	if node.Kind != yaml.SequenceNode || len(node.Content) == 0 {
		r.wrong(node, "rights", "want a list of %s", list(Rights()))
		return nil
	}
	for _, n := range node.Content {
		switch right := Right(n.Value); {
		case n.Kind != yaml.ScalarNode || !slices.Contains(Rights(), right):
			r.wrong(n, "rights", "%s is none: want some of %s", printable(n.Value), list(Rights()))
		case slices.Contains(all, right):
			r.wrong(n, "rights", "%s is there twice", right)
		default:
			all = append(all, right)
		}
	}
	return all
}

// text is parsed for strings.
func (r *reader) text(node *yaml.Node, field string, to *string, parse func(string) (string, error)) {
	parsed(r, node, field, to, parse)
}

// parsed parses a single value.
func parsed[T any](r *reader, node *yaml.Node, field string, to *T, parse func(string) (T, error)) {
	if node.Kind != yaml.ScalarNode || node.Tag == "!!null" {
		r.wrong(node, field, "want a single value")
		return
	}
	value, err := parse(node.Value)
	if err != nil {
		r.wrong(node, field, "%w", err)
		return
	}
	*to = value
}

func checkID(s string) error {
	if !keyID.MatchString(s) {
		return errID
	}
	return nil
}

// checkTenant refuses what cannot be a fairness_id.
func checkTenant(s string) error {
	if s == "" || len(s) > maxTenant || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) {
		return fmt.Errorf("want 1 to %d printable ASCII characters, or %s for the tenant that a request names", maxTenant, AnyTenant)
	}
	return nil
}

// Values of prefix_cache.
const (
	ofTenant = "tenant"
	shared   = "shared"
)

func parsePrefixCache(s string) (shares bool, err error) {
	if s != ofTenant && s != shared {
		return false, fmt.Errorf("want %s, so that tenants share no cached prefixes, or %s", ofTenant, shared)
	}
	return s == shared, nil
}

func parseTime(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil || t.IsZero() {
		return time.Time{}, errors.New("want a time such as 2027-01-31T12:00:00Z")
	}
	return t, nil
}

func positive(s string) (int, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("want a number of 1 to %d; leave it out for no bound", math.MaxInt32)
	}
	return int(n), nil
}

// printable returns a short text of a file for people.
func printable(s string) string { return fmt.Sprintf("%.40q", s) }
