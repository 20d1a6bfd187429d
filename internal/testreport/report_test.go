package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReportPrintsWhatGoTestPrints(t *testing.T) {
	in := strings.Join([]string{
		`# a message that is no event`,
		`{"Action":"build-output","ImportPath":"p","Output":"x.go:1: broken\n"}`,
		`{"Action":"output","Package":"p","Test":"TestGood","Output":"--- PASS: TestGood\n"}`,
		`{"Action":"pass","Package":"p","Test":"TestGood"}`,
		`{"Action":"output","Package":"p","Test":"TestBad","Output":"    bad_test.go:3: wrong\n"}`,
		`{"Action":"output","Package":"p","Test":"TestBad","Output":"--- FAIL: TestBad\n"}`,
		`{"Action":"fail","Package":"p","Test":"TestBad"}`,
		`{"Action":"output","Package":"p","Output":"PASS\n"}`,
		`{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}`,
	}, "\n") + "\n"
	var out strings.Builder
	require.NoError(t, report(strings.NewReader(in), &out))
	require.Equal(t, "# a message that is no event\nx.go:1: broken\n    bad_test.go:3: wrong\n--- FAIL: TestBad\nok  \tp\t0.1s\n", out.String())
}

func TestReportNamesWhatIsMissing(t *testing.T) {
	skip := func(test, why string) string {
		return `{"Action":"output","Package":"p","Test":"` + test + `","Output":"    a_test.go:3: ` + why + `\n"}` + "\n" +
			`{"Action":"output","Package":"p","Test":"` + test + `","Output":"--- SKIP: ` + test + `\n"}` + "\n" +
			`{"Action":"skip","Package":"p","Test":"` + test + `"}` + "\n"
	}
	in := skip("TestA", "no nginx: apt install nginx-light") + skip("TestB", "no stubs: apt install protoc-one protoc-two") +
		skip("TestC", "no nginx: apt install nginx-light") + skip("TestD", "there is no GPU here")
	var out strings.Builder
	require.NoError(t, report(strings.NewReader(in), &out))
	require.Equal(t, strings.Join([]string{
		"skipped: TestA, TestC: no nginx: apt install nginx-light",
		"skipped: TestB: no stubs: apt install protoc-one protoc-two",
		"skipped: 1 tests that need a GPU, another processor, or files that are not part of the project",
		"to run the others: apt install nginx-light protoc-one protoc-two",
	}, "\n")+"\n", out.String())
}
