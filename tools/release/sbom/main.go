// Command sbom writes the bill of materials of Go programs as CycloneDX JSON: the modules that were linked into them, with versions
// and checksums, as the programs themselves record it. The same programs give the same bytes.
package main

import (
	"cmp"
	"debug/buildinfo"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	name := flag.String("name", "", "what the programs are together")
	version := flag.String("version", "", "its version")
	licence := flag.String("licence", "", "its SPDX licence id")
	flag.Parse()
	if err := write(*name, *version, *licence, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func write(name, version, licence string, programs []string) error {
	whole := component(cdx.ComponentTypeApplication, name, version)
	whole.Licenses = &cdx.Licenses{{License: &cdx.License{ID: licence}}}
	modules := map[string]cdx.Component{}
	uses := []cdx.Dependency{}
	parts := []string{}
	for _, path := range programs {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return err
		}
		program := component(cdx.ComponentTypeApplication, filepath.Base(path), version)
		modules[program.BOMRef] = program
		parts = append(parts, program.BOMRef)
		linked := []string{}
		for _, m := range append(info.Deps, toolchain(info)) {
			c := module(m)
			modules[c.BOMRef] = c
			linked = append(linked, c.BOMRef)
		}
		slices.Sort(linked)
		uses = append(uses, cdx.Dependency{Ref: program.BOMRef, Dependencies: &linked})
	}
	uses = append(uses, cdx.Dependency{Ref: whole.BOMRef, Dependencies: &parts})
	all := slices.SortedFunc(maps.Values(modules), func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &whole}
	bom.Components, bom.Dependencies = &all, &uses
	return cdx.NewBOMEncoder(os.Stdout, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

// toolchain is the standard library as a module.
func toolchain(info *debug.BuildInfo) *debug.Module {
	return &debug.Module{Path: "stdlib", Version: info.GoVersion}
}

func component(kind cdx.ComponentType, name, version string) cdx.Component {
	return cdx.Component{Type: kind, BOMRef: name + "@" + version, Name: name, Version: version}
}

// module is one that was linked, or what stood in for it.
func module(m *debug.Module) cdx.Component {
	for m.Replace != nil {
		m = m.Replace
	}
	c := component(cdx.ComponentTypeLibrary, m.Path, m.Version)
	c.PackageURL = "pkg:golang/" + m.Path + "@" + m.Version
	if m.Sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.Sum}}
	}
	return c
}
