// Start a broker for the tests of a program; it ends with this process.
using System.Diagnostics;
using System.Text.Json;

public sealed class Broker : IDisposable
{
    private readonly Process process;

    public string ConnectionString { get; }

    public Broker(params string[] options)
    {
        var file = Path.Combine(Directory.CreateTempSubdirectory("peeklock").FullName, "ready.json");
        string[] own = ["serve", "--amqp-port", "0", "--http-port", "0", "--ready-file", file, "--exit-with-parent"];
        process = Process.Start("peeklock", own.Concat(options));
        for (var waited = 0; !File.Exists(file); waited += 20)
        {
            if (process.HasExited || waited > 30_000)
                throw new InvalidOperationException("The broker did not become ready; its log says why.");
            Thread.Sleep(20);
        }
        using var found = JsonDocument.Parse(File.ReadAllText(file));
        ConnectionString = found.RootElement.GetProperty("connectionString").GetString()!;
    }

    public void Dispose() => process.Kill();
}
