package guide

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChainsOfRulesCompile(t *testing.T) {
	// What holds for the last rule holds for all: it is found in few rounds, or this is above the limit.
	var text strings.Builder
	text.WriteString("root ::= r1\n")
	for i := 1; i < 4000; i++ {
		fmt.Fprintf(&text, "r%d ::= r%d\n", i, i+1)
	}
	text.WriteString(`r4000 ::= "x"`)
	checkTexts(t, Source{Kind: GBNF, Text: text.String()}, []string{"x"}, []string{"", "xx"})
}

func TestCompileBoundsItsWork(t *testing.T) {
	// Each source took seconds, or did not end, before its steps were counted.
	numbers := func(first int) string {
		list := make([]string, 1<<14)
		for i := range list {
			list[i] = fmt.Sprint(2*i + first)
		}
		return `{"enum":[` + strings.Join(list, ",") + `]}`
	}
	for name, tc := range map[string]struct {
		source Source
		want   error
	}{
		"alternatives of anchors": {Source{Kind: Regex, Text: strings.Repeat(`(^|(^))`, 50)}, ErrLimit},
		"two long enums":          {Source{Kind: JSONSchema, Text: `{"allOf":[` + numbers(0) + `,` + numbers(1) + `]}`}, ErrUnsupported},
		"a oneOf of long enums":   {Source{Kind: JSONSchema, Text: `{"oneOf":[` + numbers(0) + `,` + numbers(1) + `]}`}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(tc.source, byteTokens())
			require.ErrorIs(t, err, tc.want)
		})
	}
}
