// Reads a Dockerfile or a compose file with the parsers of Docker itself, or objects of Kubernetes into its own
// types, and prints what it found as JSON.
//
//	containers dockerfile|compose|kubernetes FILE
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/compose-spec/compose-go/loader"
	"github.com/compose-spec/compose-go/types"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

type copied struct {
	From    string   `json:"from"`
	Sources []string `json:"sources"`
	Target  string   `json:"target"`
}

type stage struct {
	Base     string            `json:"base"`
	Name     string            `json:"name"`
	Commands []string          `json:"commands"`
	Copies   []copied          `json:"copies"`
	Env      map[string]string `json:"env"`
	User     string            `json:"user"`
	Start    []string          `json:"start"`
	Health   []string          `json:"health"`
	Volumes  []string          `json:"volumes"`
	Ports    []string          `json:"ports"`
}

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: containers dockerfile|compose|kubernetes FILE"))
	}
	var found any
	var err error
	switch os.Args[1] {
	case "dockerfile":
		found, err = readDockerfile(os.Args[2])
	case "compose":
		found, err = readCompose(os.Args[2])
	default:
		found, err = readKubernetes(os.Args[2])
	}
	if err != nil {
		fail(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func readDockerfile(path string) ([]stage, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	parsed, err := parser.Parse(file)
	if err != nil {
		return nil, err
	}
	for _, warning := range parsed.Warnings {
		return nil, fmt.Errorf("%s", warning.Short)
	}
	stages, _, err := instructions.Parse(parsed.AST)
	if err != nil {
		return nil, err
	}
	var found []stage
	for _, one := range stages {
		found = append(found, describe(one))
	}
	return found, nil
}

func describe(one instructions.Stage) stage {
	made := stage{Base: one.BaseName, Name: one.Name, Copies: []copied{}, Env: map[string]string{}}
	var entry, arguments []string
	for _, command := range one.Commands {
		made.Commands = append(made.Commands, command.Name())
		switch given := command.(type) {
		case *instructions.CopyCommand:
			made.Copies = append(made.Copies, copied{given.From, given.SourcePaths, given.DestPath})
		case *instructions.EnvCommand:
			for _, pair := range given.Env {
				made.Env[pair.Key] = pair.Value
			}
		case *instructions.UserCommand:
			made.User = given.User
		case *instructions.EntrypointCommand:
			entry = given.CmdLine
		case *instructions.CmdCommand:
			arguments = given.CmdLine
		case *instructions.HealthCheckCommand:
			made.Health = given.Health.Test
		case *instructions.VolumeCommand:
			made.Volumes = append(made.Volumes, given.Volumes...)
		case *instructions.ExposeCommand:
			made.Ports = append(made.Ports, given.Ports...)
		}
	}
	made.Start = append(entry, arguments...)
	return made
}

func readCompose(path string) (*types.Project, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return loader.Load(types.ConfigDetails{
		WorkingDir:  filepath.Dir(path),
		ConfigFiles: []types.ConfigFile{{Filename: path, Content: content}},
		Environment: types.NewMapping(os.Environ()),
	}, func(options *loader.Options) {
		options.SetProjectName("metaq", true)
		options.Profiles = []string{"*"}
	})
}
