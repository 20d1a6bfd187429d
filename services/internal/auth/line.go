package auth

import (
	"fmt"
	"strings"
	"time"
)

// Line returns the key's line of a file of keys, with its line end. It returns an error if Parse
// would refuse the line.
func (k *Key) Line() (string, error) {
	var fields []string
	add := func(format string, args ...any) { fields = append(fields, fmt.Sprintf(format, args...)) }
	add("id: %q", k.ID) // Go and YAML quote printable ASCII alike, and Parse accepts nothing else
	hashes := make([]string, len(k.Hashes))
	for i, h := range k.Hashes {
		hashes[i] = fmt.Sprintf("%q", h.String())
	}
	if len(hashes) == 1 {
		add("hash: %s", hashes[0])
	} else {
		add("hash: [%s]", strings.Join(hashes, ", "))
	}
	if k.Tenant != "" && k.Tenant != k.ID {
		add("tenant: %q", k.Tenant)
	}
	if k.SharesPrefixes {
		add("prefix_cache: %s", shared)
	}
	add("rights: [%s]", list(k.Rights))
	if !k.Expires.IsZero() {
		add("expires: %s", k.Expires.UTC().Format(time.RFC3339))
	}
	var limits []string
	for _, l := range []struct {
		name  string
		value int
	}{
		{"requests_per_minute", k.Limits.RequestsPerMinute}, {"tokens_per_minute", k.Limits.TokensPerMinute}, {"streams", k.Limits.Streams},
	} {
		if l.value != 0 {
			limits = append(limits, fmt.Sprintf("%s: %d", l.name, l.value))
		}
	}
	if k.Limits.Priority != nil {
		limits = append(limits, fmt.Sprintf("priority: %d", *k.Limits.Priority))
	}
	if limits != nil {
		add("limits: {%s}", strings.Join(limits, ", "))
	}
	line := "- {" + strings.Join(fields, ", ") + "}\n"
	_, err := Parse(line)
	return line, err
}
