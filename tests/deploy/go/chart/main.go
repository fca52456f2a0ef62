// Renders and lints a chart as `helm template` and `helm lint` do, many times in one process.
//
// Argument: the folder of the chart. Standard input: a JSON object, from the name of a case to its values. Standard
// output: a JSON object, from the same names to {"files": {path: text}, "lint": [text]}, or {"error": text} where the
// chart refuses the values.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

type result struct {
	Files map[string]string `json:"files,omitempty"`
	Lint  []string          `json:"lint"`
	Error string            `json:"error,omitempty"`
}

func main() {
	cases := map[string]map[string]any{}
	check(json.NewDecoder(os.Stdin).Decode(&cases))
	results := map[string]result{}
	for name, values := range cases {
		results[name] = run(os.Args[1], values)
	}
	check(json.NewEncoder(os.Stdout).Encode(results))
}

func run(folder string, values map[string]any) result {
	files, err := render(folder, values)
	if err != nil {
		return result{Lint: []string{}, Error: err.Error()}
	}
	found := []string{}
	for _, message := range lint.All(folder, values, "messaging", true).Messages {
		if message.Severity > support.InfoSev { // an icon is recommended
			found = append(found, message.Error())
		}
	}
	return result{Files: files, Lint: found}
}

func render(folder string, values map[string]any) (map[string]string, error) {
	chart, err := loader.Load(folder)
	if err != nil {
		return nil, err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	release := chartutil.ReleaseOptions{Name: "peeklock", Namespace: "messaging", IsInstall: true, Revision: 1}
	all, err := chartutil.ToRenderValues(chart, values, release, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, all)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
